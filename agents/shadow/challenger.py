"""A bundle that looks on: what it would have decided and predicted, had it served.

It decides behind a guard of its own, without exploration, and at the time of the decision: what its
fallbacks would have done is its opinion too, and no deadline passes while it waits for its turn.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.guard import Guard, GuardSettings
from steersman.agents.learned.served import KIND, POLICY_FEATURES, LearnedPolicy
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.policy import NO_CANDIDATE
from steersman.env.observation import observe
from steersman.predictors.bundle import POLICY_FILE, Bundle
from steersman.predictors.features import LENGTH_FEATURES, REQUEST_FEATURES, request_features
from steersman.predictors.identity import identity
from steersman.predictors.latency import AnalyticLatency, LatencyModel, LatencyPredictor
from steersman.predictors.ledger import STATE_WIDTH
from steersman.predictors.length import FallbackLength, LengthModel, LengthPredictor
from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Decision, Observation
from steersman.traces.shadow_record import ShadowRecord

_KNOWN = len(LENGTH_FEATURES)


@dataclass(frozen=True, slots=True)
class Case:
    """A decision that was made, and all that was known then. n: replicas. References, no copies."""

    request_id: str
    model: str
    decided_at_s: float
    state: NDArray[np.float64]
    """(n, STATE_WIDTH)"""
    match_tokens: NDArray[np.float64]
    """(n,)"""
    mask: NDArray[np.bool_]
    """(n,): who could be chosen."""
    request_features: NDArray[np.float32]
    """(len(REQUEST_FEATURES),), with the champion's predictions of length."""
    identity: NDArray[np.int64]
    """(2,)"""
    choice: int

    @staticmethod
    def of(record: OutcomeRecord) -> Case | None:
        """Of a logged decision; None where nothing was decided, or another version logged it."""
        n = len(record.replica_ids)
        is_whole = (
            0 <= record.choice < n
            and record.state.shape == (n, STATE_WIDTH)
            and record.match_tokens.shape == record.mask.shape == (n,)
            and record.request_features.shape == (len(REQUEST_FEATURES),)
            and bool(record.mask[record.choice])
        )
        if not is_whole:
            return None
        return Case(
            record.request_id,
            record.model,
            record.decided_at_s,
            record.state,
            record.match_tokens,
            record.mask,
            record.request_features,
            identity(record.tenant, record.session_id),
            record.choice,
        )


class Challenger:
    """The opinions of one bundle. Keeps a policy with its state for every model; not for two threads.

    Args:
        bundle: as it would be served: without a policy, the shipped one on top of its predictors.
        guard: as it would be served with.
        seed: draws ties.

    Raises:
        ArtifactError: one of its models cannot be served.
    """

    def __init__(self, bundle: Bundle, guard: GuardSettings | None = None, *, seed: int = 0) -> None:
        self.version = bundle.version
        self.length: LengthPredictor = LengthModel.from_bundle(bundle) or FallbackLength()
        self.latency: LatencyPredictor = LatencyModel.from_bundle(bundle) or AnalyticLatency()
        self._guard = guard or GuardSettings()
        self._rng = np.random.default_rng(seed)
        self._now_s = 0.0
        self._policies: dict[str, Guard] = {}
        self._model = _policy_of(bundle) or _policy_of(load_shipped())
        self._make()

    def opinion(self, case: Case) -> ShadowRecord:
        """What it would have done."""
        self._now_s = case.decided_at_s
        request = self._request(case.request_features)
        seen = observe(
            case.state,
            request,
            case.match_tokens,
            np.array(case.decided_at_s),
            ~case.mask,
            case.identity,
        )
        seen.mask = case.mask
        decision = self._policy(case.model).decide(seen)
        own, champions = self._predicted(seen, request, decision.choice, case.choice)
        return ShadowRecord(
            request_id=case.request_id,
            decided_at_s=case.decided_at_s,
            challenger=self.version,
            model=case.model,
            champion_choice=case.choice,
            choice=decision.choice,
            policy=decision.policy,
            fallback_reason=decision.fallback_reason,
            propensity=decision.propensity,
            scores=decision.scores,
            probabilities=chances(decision, case.mask),
            output_p50=float(request[_KNOWN]),
            output_p90=float(request[_KNOWN + 1]),
            own=own,
            champions=champions,
        )

    def failed(self, case: Case, error: Exception) -> ShadowRecord:
        """It could not say."""
        reason = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        return ShadowRecord(
            request_id=case.request_id,
            decided_at_s=case.decided_at_s,
            challenger=self.version,
            model=case.model,
            champion_choice=case.choice,
            error=reason,
        )

    def _request(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """The request as it would see it: the same facts and objectives, its own output length."""
        known = features[:_KNOWN]
        p50, p90, _ = self.length.predict(known[None])[0].tolist()
        ttft_slo_s, tpot_slo_s = features[_KNOWN + 2 : _KNOWN + 4].tolist()
        return request_features(known, p50, p90, ttft_slo_s, tpot_slo_s)

    def _predicted(
        self, seen: Observation, request: NDArray[np.float32], own: int, champions: int
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        there = self.latency.predict(seen.replicas[[own, champions]], request)
        if own == NO_CANDIDATE:
            there[0] = np.nan
        return there[0], there[1]

    def _policy(self, model: str) -> Guard:
        policy = self._policies.get(model)
        if policy is None:
            policy = self._policies[model] = self._make()
        return policy

    def _make(self) -> Guard:
        learned = None if self._model is None else LearnedPolicy(self._model, self._rng)
        return Guard.make(learned, self._guard, seed=self._rng, clock=lambda: self._now_s)


def chances(decision: Decision, mask: NDArray[np.bool_]) -> NDArray[np.float32] | None:
    """The chance of every candidate, (n,), as far as a decision tells: certain, or a tie of the best."""
    choice, scores = decision.choice, decision.scores
    if choice == NO_CANDIDATE:
        return None
    chance = np.zeros(len(mask), dtype=np.float32)
    if decision.propensity >= 1.0:
        chance[choice] = 1.0
        return chance
    if scores is None:
        return None
    tied = mask & (scores == scores[choice])
    count = int(np.count_nonzero(tied))
    if abs(count * decision.propensity - 1.0) > 1e-6:
        return None  # drawn otherwise: two choices at random, for example
    chance[tied] = 1.0 / count
    return chance


def _policy_of(bundle: Bundle) -> OnnxModel | None:
    model = bundle.model(POLICY_FILE, kind=KIND, features=POLICY_FEATURES)
    if model is not None:
        LearnedPolicy(model, np.random.default_rng(0))  # refuses ranges that make no sense
    return model
