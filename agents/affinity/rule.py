"""When a request stays with its group, and when it does not."""

from __future__ import annotations

from collections.abc import Hashable

from steersman.agents.affinity.settings import AffinitySettings
from steersman.agents.affinity.shares import Shares
from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation

AFFINITY = "affinity"
"""`Decision.policy` of those that stayed."""

_TTFT = REPLICA_INDEX["ttft_s"]
_KV_USAGE = REPLICA_INDEX["kv_usage"]


class Stickiness:
    """The rule, and what it has to remember of the traffic: how large groups are.

    Stage one: the request of a group goes to the group's home if that may be chosen and is not
    overloaded. It is, when the first token there is expected `slower_s` later than at the best other
    (what the home has cached of the prompt counts for it), or when its KV memory is nearly full. Stage
    two: everything else is the policy's. One hot replica so loses its own groups and no others.

    A group that sends more than `most_share` of a replica's fair part of the traffic is never followed:
    it would be the hot spot itself.
    """

    def __init__(self, settings: AffinitySettings) -> None:
        self._settings = settings
        self._shares = Shares(settings.window_s)

    def binds(self, group: Hashable | None, candidates: int, now_s: float) -> bool:
        """Whether a request's group may have a home. To be asked once for each request.

        Args:
            group: None for a request of no group.
            candidates: replicas of the pool.
        """
        share = self._shares.add(group, now_s)
        return group is not None and share * candidates <= self._settings.most_share

    def decide(self, home: int | None, observation: Observation, policy: Policy) -> Decision:
        """The group's home, or what the policy says.

        Args:
            home: position of the home among the candidates; None where there is none.
        """
        if home is not None and self.stays(home, observation):
            return Decision(home, AFFINITY)
        return policy.decide(observation)

    def stays(self, home: int, observation: Observation) -> bool:
        """Whether the home may be chosen and is not overloaded."""
        mask, replicas = observation.mask, observation.replicas
        if home == NO_CANDIDATE or not mask[home]:
            return False
        if not replicas[home, _KV_USAGE] <= self._settings.most_kv_usage:
            return False
        best_s = float(replicas[:, _TTFT].min(where=mask, initial=float("inf")))
        return bool(replicas[home, _TTFT] - best_s <= self._settings.slower_s)
