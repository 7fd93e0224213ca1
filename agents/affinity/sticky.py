"""Affinity in front of a policy, as a policy: for the simulator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.agents.affinity.homes import Homes
from steersman.agents.affinity.rule import Stickiness
from steersman.agents.affinity.settings import AffinitySettings, GroupKey
from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.predictors.identity import SESSION, TENANT
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Decision, Observation

_POSITIONS = {GroupKey.SESSION: SESSION, GroupKey.TENANT: TENANT}


class Sticky:
    """A policy behind the two stages. Homes are positions, so the pool must not change its order.

    Raises:
        ConfigError: a key that an observation does not tell.
    """

    def __init__(self, policy: Policy, settings: AffinitySettings) -> None:
        unknown = [key.value for key in settings.keys if key not in _POSITIONS]
        if unknown:
            raise ConfigError(f"affinity by '{unknown[0]}' is the router's only; use session or tenant")
        self._policy = policy
        self._rule = Stickiness(settings)
        self._homes: Homes[int] = Homes(settings.timeout_s, settings.most_groups)
        self._positions = [_POSITIONS[key] for key in settings.keys]
        self.name = f"{policy.name}+affinity"
        self.version = policy.version

    def decide(self, observation: Observation) -> Decision:
        """The group's home, or what the policy says."""
        now_s = float(observation.at_s)
        group = self._group(observation.identity)
        if not self._rule.binds(group, len(observation.mask), now_s):
            return self._policy.decide(observation)
        decision = self._rule.decide(self._homes.find(group, now_s), observation, self._policy)
        if decision.choice != NO_CANDIDATE:
            self._homes.bind(group, decision.choice, now_s)
        return decision

    def _group(self, identity: NDArray[np.int64]) -> int | None:
        return next((int(identity[i]) for i in self._positions if identity[i]), None)
