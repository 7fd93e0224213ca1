"""`predicted-latency`: llm-d's predicted-latency scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.batch import Choose, argmax_choices
from steersman.agents.policies.scored import Constants
from steersman.agents.policies.spread import min_max
from steersman.agents.policy import NO_CANDIDATE, argmax_decision
from steersman.predictors.features import REPLICA_INDEX
from steersman.predictors.latency import LATENCY_OUTPUTS, AnalyticLatency, LatencyPredictor
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

Float32 = NDArray[np.float32]

_MATCH = REPLICA_INDEX["match_fraction"]
_TTFT, _TPOT = (LATENCY_OUTPUTS.index(name) for name in ("ttft_p90_s", "tpot_p90_s"))
_ANALYTIC = AnalyticLatency()
"""One for all: those who ask the same one are asked together."""


class PredictedLatencyOptions(Settings):
    """Options of `predicted-latency`."""

    ttft_weight: float = Field(default=0.8, ge=0.0, description="Weight of the predicted TTFT.")
    tpot_weight: float = Field(default=0.2, ge=0.0, description="Weight of the predicted TPOT.")
    exploration: float = Field(
        default=0.01, ge=0.0, le=1.0, description="Share of requests that go anywhere, to learn from."
    )
    affinity_match: float = Field(
        default=0.8, ge=0.0, le=1.0, description="Matched share of the prompt that reserves the request."
    )
    affinity_penalty_s: float = Field(
        default=5.0,
        ge=0.0,
        description="By how much its TTFT may exceed the best one's, in seconds.",
    )


class PredictedLatency:
    """The replica with the best predicted latency::

        argmin of 0.8 norm(TTFT p90) + 0.2 norm(TPOT p90)

    where norm scales the candidates' predictions to 0..1. Replicas that hold `affinity_match` of the
    prompt are preferred while the best of them is predicted to be at most `affinity_penalty_s` slower
    to the first token than the best of all; a share `exploration` of the requests goes anywhere.

    Args:
        latency: predicts; in the router and in an evaluation with a bundle this is the trained model
            (boosted trees over KV use, lengths, waiting, running, match and tokens in flight, as
            theirs); by default the analytic estimate, corrected online by what came back.
    """

    name: ClassVar[str] = "predicted-latency"

    def __init__(
        self,
        options: PredictedLatencyOptions,
        rng: np.random.Generator,
        latency: LatencyPredictor | None = None,
    ) -> None:
        self._options = options
        self._constants = (
            np.float64(options.ttft_weight),
            np.float64(options.tpot_weight),
            np.float32(options.affinity_match),
            np.float64(options.affinity_penalty_s),
        )
        self._rng = rng
        self._latency = latency or _ANALYTIC

    @property
    def version(self) -> str:
        """Of the latency model; empty for the analytic estimate."""
        return self._latency.version

    def replace(self, latency: LatencyPredictor) -> None:
        """Ask another predictor from now on."""
        self._latency = latency

    def decide(self, observation: Observation) -> Decision:
        """The best predicted, within the affinity gate; now and then any."""
        predicted = self._latency.predict(observation.replicas, observation.request)
        scores, gated = _rank(observation, predicted, self._constants)
        best = argmax_decision(scores, gated, self._rng, policy=self.name, version=self.version)
        if not observation.mask.any():
            return best
        return self._explored(best, scores, gated, observation.mask)

    @staticmethod
    def together(policies: Sequence[PredictedLatency]) -> Choose:
        """See `BatchPolicy.together`."""
        columns = zip(*(policy._constants for policy in policies), strict=True)
        constants = [np.array(column)[:, None] for column in columns]
        rngs = [policy._rng for policy in policies]
        models: dict[int, list[int]] = {}
        for i, policy in enumerate(policies):
            models.setdefault(id(policy._latency), []).append(i)

        def choose(observation: Observation) -> NDArray[np.int64]:
            n = observation.mask.shape[1]
            predicted = np.empty((len(policies), n, len(LATENCY_OUTPUTS)))
            for rows in models.values():
                part = observation.rows(np.array(rows), n)
                predicted[rows] = policies[rows[0]]._latency.predict(part.replicas, part.request)
            choices = argmax_choices(*_rank(observation, predicted, constants), rngs)
            for i in np.flatnonzero(choices != NO_CANDIDATE).tolist():
                if rngs[i].random() < policies[i]._options.exploration:
                    choices[i] = rngs[i].choice(np.flatnonzero(observation.mask[i]))
            return choices

        return choose

    def _explored(
        self, best: Decision, scores: Float32, gated: NDArray[np.bool_], mask: NDArray[np.bool_]
    ) -> Decision:
        """With a small chance any allowed replica instead; the propensity counts both ways there."""
        choice, share = best.choice, self._options.exploration
        if self._rng.random() < share:
            choice = int(self._rng.choice(np.flatnonzero(mask)))
        is_best = gated[choice] and scores[choice] == scores[best.choice]
        propensity = share / int(mask.sum()) + (1.0 - share) * best.propensity * float(is_best)
        return Decision(choice, self.name, self.version, propensity=min(propensity, 1.0), scores=scores)


def _rank(
    observation: Observation, predicted: NDArray[np.float64], constants: Constants
) -> tuple[Float32, NDArray[np.bool_]]:
    """Scores of the candidates, higher is better, and among whom the best is taken, both (..., n)."""
    ttft_weight, tpot_weight, affinity_match, penalty_s = constants
    mask = observation.mask
    ttft_s, tpot_s = predicted[..., _TTFT], predicted[..., _TPOT]
    cost = ttft_weight * min_max(ttft_s, mask) + tpot_weight * min_max(tpot_s, mask)
    holders = mask & (observation.replicas[..., _MATCH] >= affinity_match)
    best_s = np.where(mask, ttft_s, np.inf).min(axis=-1, keepdims=True)
    there_s = np.where(holders, ttft_s, np.inf).min(axis=-1, keepdims=True)
    is_open = holders.any(axis=-1, keepdims=True) & (there_s <= best_s + penalty_s)
    return -cost.astype(np.float32), np.where(is_open, holders, mask)
