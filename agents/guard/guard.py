"""`Guard`: a policy around a learned policy."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from steersman.agents.guard.latch import Latch, LatchState
from steersman.agents.guard.regret import RegretWatch
from steersman.agents.guard.settings import FallbackReason, GuardSettings
from steersman.agents.guard.share import ShareWindow, fair_share
from steersman.agents.policies import make_policy
from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.agents.ranges import Ranges
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.traces.errors import ConfigError
from steersman.traces.schema import CLASS_WEIGHTS, Decision, Observation, Priority

Float32 = NDArray[np.float32]
Clock = Callable[[], float]
"""Seconds; monotonic in the router, simulated in an evaluation."""

_AGE = REPLICA_INDEX["age_s"]
_TTFT = REPLICA_INDEX["ttft_s"]
_QUEUE = REPLICA_INDEX["queue"]
_PRIORITY = REQUEST_INDEX["priority"]
_BATCH_WEIGHT = CLASS_WEIGHTS[Priority.BATCH]


@runtime_checkable
class Ensemble(Policy, Protocol):
    """A policy of several heads, whose disagreement tells when it is guessing.

    `decide(observation)` is `choose(head_scores(observation), observation.mask)`.
    """

    def head_scores(self, observation: Observation) -> Float32:
        """Scores of every head, (heads, n); what is masked is finite, and of no meaning."""
        ...

    def choose(self, heads: Float32, mask: NDArray[np.bool_]) -> Decision:
        """The decision that follows; at least one candidate must be allowed."""
        ...


class Guard:
    """Serves a learned policy, or a fallback wherever the learned policy is in doubt.

    The learned policy may have, beside the contract, `ranges` (`Ranges` or None), the features it
    was trained on; and it may be an `Ensemble`.

    The propensity of a decision is that of the policy which made it, given that it was asked.
    """

    def __init__(
        self,
        policy: Policy | None,
        fallbacks: Sequence[Policy],
        settings: GuardSettings | None = None,
        *,
        clock: Clock = time.monotonic,
    ) -> None:
        if not fallbacks:
            raise ConfigError("guard: 'fallbacks' is empty; name at least one policy, for example p2c")
        self.settings = settings or GuardSettings()
        self._fallbacks = tuple(fallbacks)
        self._clock = clock
        self._window = ShareWindow(self.settings.share_window)
        self.decisions = 0
        self.fallbacks: dict[FallbackReason, int] = dict.fromkeys(FallbackReason, 0)
        """Decisions that the learned policy did not make, by reason."""
        self.last_error = ""
        """The last exception of the learned policy, for logs."""
        self.replace(policy)

    @classmethod
    def make(
        cls,
        policy: Policy | None,
        settings: GuardSettings | None = None,
        *,
        seed: int | np.random.Generator,
        clock: Clock = time.monotonic,
    ) -> Guard:
        """A guard with the fallbacks that its settings name.

        Raises:
            ConfigError: an unknown fallback.
        """
        settings = settings or GuardSettings()
        rng = np.random.default_rng(seed)
        fallbacks = [make_policy(name, seed=rng) for name in settings.fallbacks]
        return cls(policy, fallbacks, settings, clock=clock)

    @property
    def name(self) -> str:
        """The learned policy's name; the first fallback's without one."""
        return self._policy.name if self._policy is not None else self._fallbacks[0].name

    @property
    def version(self) -> str:
        """The learned policy's version; empty without one."""
        return self._policy.version if self._policy is not None else ""

    @property
    def latched(self) -> bool:
        """Whether the fallback serves alone."""
        return self._latch.state is not LatchState.OPEN

    @property
    def closings(self) -> int:
        """How often the latch has closed on the present policy."""
        return self._latch.closings

    def replace(self, policy: Policy | None) -> None:
        """Serve another learned policy from the next decision on; it starts unlatched."""
        s = self.settings
        self._policy = policy
        # Asked once: isinstance of a protocol is slow.
        self._ensemble = policy if isinstance(policy, Ensemble) else None
        self._ranges: Ranges | None = getattr(policy, "ranges", None)
        self._regret = RegretWatch(s.cost_window, s.cost_slack, s.cost_factor)
        self._latch = Latch(
            trips=s.latch_trips, window=s.latch_window, hold_s=s.latch_hold_s, clean=s.latch_clean
        )

    def decide(self, observation: Observation) -> Decision:
        """The learned policy's decision, or a fallback's with the reason."""
        mask = observation.mask
        allowed = np.count_nonzero(mask)
        if not allowed:
            return Decision(NO_CANDIDATE, self.name, self.version)
        self.decisions += 1
        rows = observation.replicas if allowed == len(mask) else observation.replicas[mask]
        decision, reason = self._attempt(observation, rows)
        if reason is not None:
            self.fallbacks[reason] += 1
            decision = self._fall_back(observation, reason)
        assert decision is not None
        self._window.record(decision.choice, len(mask))
        return decision

    def settle(self) -> None:
        """See `agents.policy.settle`."""
        self._regret.settle()

    def _attempt(
        self, observation: Observation, rows: Float32
    ) -> tuple[Decision | None, FallbackReason | None]:
        """The learned policy's decision if it may serve, else the reason why not.

        Args:
            rows: `observation.replicas` of whom the mask allows.
        """
        if self._policy is None:
            return None, FallbackReason.NO_MODEL
        now_s = self._clock()
        if self._latch.refresh(now_s) is LatchState.HOLDING:
            return None, FallbackReason.LATCHED
        probing = self.latched
        decision, reason = self._consult(self._policy, observation, rows, now_s)
        tripped = reason is not None and not self._is_passing(reason)
        self._latch.record(now_s, tripped=tripped)
        if tripped and self._latch.state is LatchState.HOLDING:
            # Else what closed the latch would count for as long as nobody else's choices are counted.
            self._regret.forget()
        if reason is None and probing:
            return None, FallbackReason.LATCHED
        return decision, reason

    def _is_passing(self, reason: FallbackReason) -> bool:
        """Whether a doubt is about this one decision, and not about the policy: near saturation some
        have to wait, whoever decides."""
        return reason is FallbackReason.SLOW_CHOICE and not self._regret.is_lost

    def _consult(
        self, policy: Policy, observation: Observation, rows: Float32, now_s: float
    ) -> tuple[Decision | None, FallbackReason | None]:
        s = self.settings
        if self._stale(rows):
            return None, FallbackReason.STALE
        if self._ranges is not None and self._ranges.is_beyond(
            rows, observation.request, s.range_tolerance, s.max_outside_share
        ):
            return None, FallbackReason.OUT_OF_RANGE
        heads = None
        try:
            if self._ensemble is not None:
                heads = self._ensemble.head_scores(observation)
                decision = self._ensemble.choose(heads, observation.mask)
            else:
                decision = policy.decide(observation)
        except Exception as error:  # whatever a model can throw must not stop the traffic
            self.last_error = repr(error)
            return None, FallbackReason.ERROR
        if (self._clock() - now_s) * 1e3 > s.deadline_ms:
            return None, FallbackReason.DEADLINE
        return decision, self._doubt(decision, heads, observation, rows)

    def _doubt(
        self, decision: Decision, heads: Float32 | None, observation: Observation, rows: Float32
    ) -> FallbackReason | None:
        """What is wrong with an answer."""
        choice, scores, mask = decision.choice, decision.scores, observation.mask
        if not (0 <= choice < len(mask) and mask[choice]):
            return FallbackReason.INVALID_CHOICE
        if len(rows) < len(mask):
            # From here on only of whom the mask allows.
            choice = int(np.count_nonzero(mask[:choice]))
            scores = None if scores is None else scores[mask]
            heads = None if heads is None else heads[:, mask]
        # The scores of an ensemble are made of its heads'.
        judged = scores if heads is None else heads
        if not (judged is None or _is_finite(judged)):
            return FallbackReason.NON_FINITE
        if heads is not None and disagrees(heads, self.settings.max_disagreement):
            return FallbackReason.DISAGREEMENT
        return self._poor(rows, choice, decision.choice, observation.request)

    def _poor(self, rows: Float32, choice: int, replica: int, request: Float32) -> FallbackReason | None:
        """What is wrong with a choice that is allowed.

        Args:
            rows: of whom the mask allows.
            choice: the chosen one's place among the rows.
            replica: its place among all.
            request: its features.
        """
        may_wait = not request[_PRIORITY] < Priority.BATCH
        # Asked first: it counts every choice.
        is_costly = self._regret.is_costly(rows, choice, _BATCH_WEIGHT if may_wait else 1.0)
        if self._slow(rows, choice):
            # Batch classes may wait, so that others need not. And where all are busy, slow may be right:
            # others are delayed less there, or a prefix is kept for those who return.
            is_sound = may_wait or self._regret.is_near_cheapest
            if not is_sound or self._regret.is_lost:
                return FallbackReason.SLOW_CHOICE
        if is_costly:
            return FallbackReason.COSTLY
        return FallbackReason.CROWDED if self._crowded(rows, choice, replica) else None

    def _stale(self, rows: Float32) -> bool:
        ages = rows[:, _AGE]
        # The position of the largest is found three times as fast as the largest; a NaN counts as it.
        if ages[ages.argmax()] <= self.settings.max_age_s:
            return False
        # Written so that a NaN age is stale.
        stale = np.count_nonzero(~(ages <= self.settings.max_age_s))
        return bool(stale > self.settings.max_stale_share * len(ages))

    def _slow(self, rows: Float32, choice: int) -> bool:
        chosen_s = float(rows[choice, _TTFT])
        if chosen_s <= self.settings.slow_slack_s:
            return False  # whatever the best is
        ttft_s = rows[:, _TTFT]
        best_s = float(ttft_s[ttft_s.argmin()])
        return chosen_s > self.settings.slow_factor * best_s + self.settings.slow_slack_s

    def _crowded(self, rows: Float32, choice: int, replica: int) -> bool:
        if self._window.filled < self.settings.share_window:
            return False
        # Near saturation the cheapest choice is often one replica that is given up so that the others
        # keep their service levels: marginal cost, which would decide instead, crowds it as well.
        if self._regret.beyond_cheapest <= 0.0:
            return False
        queue = rows[:, _QUEUE]
        if not queue[choice] > np.add.reduce(queue) / len(queue):
            return False
        if self._regret.excess <= 0.0:
            return False
        fair = float(fair_share(rows)[choice])
        limit = 1.0 - (1.0 - fair) ** self.settings.share_factor
        return bool(self._window.share(replica) > limit)

    def _fall_back(self, observation: Observation, reason: FallbackReason) -> Decision:
        *earlier, last = self._fallbacks
        for policy in earlier:
            decision = policy.decide(observation)
            scores = decision.scores
            finite = scores is None or _is_finite(scores[observation.mask])
            if finite and decision.choice != NO_CANDIDATE:
                return _because(decision, reason)
        return _because(last.decide(observation), reason)


def _is_finite(scores: Float32) -> bool:
    # Squares do not cancel out: their sum, found in one step and without a word about overflow, is
    # finite only if all are. Where it is not, some may merely be large.
    if math.isfinite(np.vdot(scores, scores)):
        return True
    return bool(np.count_nonzero(np.isfinite(scores)) == scores.size)


def disagrees(heads: NDArray[np.float32], limit: float) -> bool:
    """Whether `disagreement` is beyond a limit, 0 to 1; found without it where the heads are close.

    Logits that nowhere differ by more than d give chances whose total variation is at most tanh(d / 2):
    that is the case of two candidates, d apart in opposite senses.

    Args:
        heads: (heads, candidates), finite.
    """
    apart = np.maximum.reduce(heads) - np.minimum.reduce(heads)
    if math.tanh(0.5 * float(apart[apart.argmax()])) <= limit:
        return False
    return disagreement(heads) > limit


def disagreement(heads: NDArray[np.float32]) -> float:
    """How much an ensemble's heads disagree about whom to choose, 0 to 1.

    The mean total-variation distance between each head's softmax and their average.

    Args:
        heads: (heads, candidates), finite.
    """
    chances = np.exp(heads - heads.max(axis=-1, keepdims=True))
    chances /= chances.sum(axis=-1, keepdims=True)
    # Not `mean`, which takes several times as long.
    average = chances.sum(axis=0) / len(heads)
    return 0.5 * float(np.abs(chances - average).sum()) / len(heads)


def _because(decision: Decision, reason: FallbackReason) -> Decision:
    return Decision(
        decision.choice,
        decision.policy,
        decision.version,
        decision.propensity,
        reason.value,
        decision.scores,
    )
