"""Now and then chance decides, so that the outcome log can judge policies that were never served.

Off-policy estimates divide by the probability with which the logged choice was made, so that has to be
true whatever the way to it: the learned policy or a fallback, an idle pool or a queue, chance or not.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policy import NO_CANDIDATE, Policy, settle
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation

_TTFT = REPLICA_INDEX["ttft_s"]


class Explorer:
    """A policy of which a share of the decisions is drawn evenly from the sound candidates.

    Sound is who may be chosen and has its first token predicted no later than `slow_factor` times that
    of the best plus `slow_slack_s`: the guard's bound (`GuardSettings`). A draw from all candidates
    would send one request in a hundred anywhere, and that is what the 99th percentile is made of.

    It stands outside the guard, which would overrule some of what chance chose: then nobody could say
    how probable the rest was. And it leaves decisions alone that were made by chance already (of `p2c`,
    or a tie): they explore by themselves. With c candidates sound and a share e explored, the policy's
    choice has the propensity 1 - e + e / c, or 1 - e where it is not sound itself, and any other e / c.

    Args:
        policy: decides.
        rng: draws.
        share: of the decisions, 0 to 1.
        slow_factor: see above.
        slow_slack_s: see above, in seconds.
    """

    def __init__(
        self,
        policy: Policy,
        rng: np.random.Generator,
        share: float,
        *,
        slow_factor: float,
        slow_slack_s: float,
    ) -> None:
        self.policy = policy
        self.share = share
        self._rng = rng
        self._slow_factor = slow_factor
        self._slow_slack_s = slow_slack_s

    @property
    def name(self) -> str:
        """The policy's."""
        return self.policy.name

    @property
    def version(self) -> str:
        """The policy's."""
        return self.policy.version

    def decide(self, observation: Observation) -> Decision:
        """The policy's decision, or chance's under the policy's name."""
        decision = self.policy.decide(observation)
        if decision.choice == NO_CANDIDATE or decision.propensity < 1.0:
            return decision
        mask, ttft_s = observation.mask, observation.replicas[:, _TTFT]
        # Drawn before anything is counted: nearly always nothing needs to be for the choice.
        if self._rng.random() >= self.share:
            return _Kept(decision, self, mask, ttft_s.copy())
        sound = self._sound(mask, ttft_s)
        count = int(np.count_nonzero(sound))
        if _is_alone(decision.choice, sound, count):
            return decision
        choice = int(np.flatnonzero(sound)[self._rng.integers(count)])
        return Decision(
            choice,
            decision.policy,
            decision.version,
            self.share / count + (1.0 - self.share if choice == decision.choice else 0.0),
            decision.fallback_reason,
            decision.scores,
            explored=True,
        )

    def settle(self) -> None:
        """See `agents.policy.settle`."""
        settle(self.policy)

    def propensity_of_kept(
        self, choice: int, mask: NDArray[np.bool_], ttft_s: NDArray[np.float32]
    ) -> float:
        """Of the policy's choice, (n,) each."""
        sound = self._sound(mask, ttft_s)
        count = int(np.count_nonzero(sound))
        if _is_alone(choice, sound, count):
            return 1.0
        return 1.0 - self.share + (self.share / count if sound[choice] else 0.0)

    def _sound(self, mask: NDArray[np.bool_], ttft_s: NDArray[np.float32]) -> NDArray[np.bool_]:
        """(n,): among whom chance chooses."""
        # The position of the least is found several times as fast as the least under a mask.
        best_s = ttft_s[ttft_s.argmin()]
        if np.count_nonzero(mask) < len(mask) or math.isnan(best_s):
            best_s = np.fmin.reduce(ttft_s, where=mask, initial=np.inf)
        sound: NDArray[np.bool_] = ttft_s <= self._slow_factor * best_s + self._slow_slack_s
        return mask & sound


def _is_alone(choice: int, sound: NDArray[np.bool_], count: int) -> bool:
    """Whether chance has nobody else to choose: it leaves the decision as it is."""
    return count == 0 or (count == 1 and bool(sound[choice]))


class _Kept(Decision):
    """The policy's decision, which chance left as it is.

    Only the outcome log asks for its propensity, when the request is long on its way; so it is counted
    then, from what was seen at the decision.

    Args:
        decision: the policy's, whose propensity is 1.
        explorer: who drew.
        mask, ttft_s: (n,), what was seen; nobody may change them.
    """

    __slots__ = ("_explorer", "_seen")
    _explorer: Explorer
    _seen: tuple[NDArray[np.bool_], NDArray[np.float32]]

    def __init__(
        self,
        decision: Decision,
        explorer: Explorer,
        mask: NDArray[np.bool_],
        ttft_s: NDArray[np.float32],
    ) -> None:
        put = object.__setattr__
        put(self, "choice", decision.choice)
        put(self, "policy", decision.policy)
        put(self, "version", decision.version)
        put(self, "fallback_reason", decision.fallback_reason)
        put(self, "scores", decision.scores)
        put(self, "explored", False)
        put(self, "_explorer", explorer)
        put(self, "_seen", (mask, ttft_s))

    def __getattr__(self, name: str) -> Any:
        # Asked only for what has not been set yet: the propensity, the first time.
        if name != "propensity":
            raise AttributeError(name)
        known = self._explorer.propensity_of_kept(self.choice, *self._seen)
        object.__setattr__(self, "propensity", known)
        return known
