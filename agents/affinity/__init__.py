"""Soft affinity in two stages (SPEC B4): a group's request goes where the group is at home, others to
the policy. The same rule in the simulator (`Sticky`) and in the router (`serving/affinity/`)."""

from steersman.agents.affinity.homes import Homes
from steersman.agents.affinity.rule import AFFINITY, Stickiness
from steersman.agents.affinity.settings import AffinitySettings, GroupKey
from steersman.agents.affinity.sticky import Sticky

__all__ = ["AFFINITY", "AffinitySettings", "GroupKey", "Homes", "Stickiness", "Sticky"]
