"""`marginal-cost`: where a request adds least to what all requests together cost."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.scored import Constants, ScoredPolicy
from steersman.predictors import analytic
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.traces.schema import Observation
from steersman.traces.settings import Settings

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_INFLIGHT = REPLICA_INDEX["inflight"]
_OUTPUT_THERE = REPLICA_INDEX["output_tokens"]
_TTFT = REPLICA_INDEX["ttft_s"]
_TPOT = REPLICA_INDEX["tpot_s"]
_INFLICTED = REPLICA_INDEX["inflicted_s"]
_CONGESTION = REPLICA_INDEX["congestion_s"]
_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]
_P50 = REQUEST_INDEX["output_p50"]
_P90 = REQUEST_INDEX["output_p90"]
_TTFT_SLO = REQUEST_INDEX["ttft_slo_s"]
_TPOT_SLO = REQUEST_INDEX["tpot_slo_s"]


class MarginalCostOptions(Settings):
    """Options of `marginal-cost`: the weights of its terms."""

    own_weight: float = Field(
        default=1.0, ge=0.0, description="Weight of this request's own latencies over their objectives."
    )
    miss_cost: float = Field(
        default=analytic.MISS_WEIGHT, ge=0.0, description="Cost of this request missing an objective."
    )
    inflicted_weight: float = Field(
        default=analytic.INFLICTED_WEIGHT, ge=0.0, description="Weight of the delay inflicted on others."
    )
    tipping_weight: float = Field(
        default=analytic.TIPPING_WEIGHT, ge=0.0, description="Weight of the misses inflicted on others."
    )
    congestion_weight: float = Field(
        default=analytic.CONGESTION_WEIGHT, ge=0.0, description="Weight of the delay of those to come."
    )
    reuse_weight: float = Field(
        default=analytic.REUSE_WEIGHT, ge=0.0, description="Weight of the cached prefixes it evicts."
    )


DEFAULTS = MarginalCostOptions()


def marginal_terms(replicas: Float32, request: Float32) -> Float64:
    """The terms of the marginal cost at weight 1, in the order of `MarginalCostOptions`, (..., n, 6).

    They are those of `predictors/analytic.py`, from the features alone; the last, which the features do
    not hold, is what the others leave of `marginal_cost`.

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
        request: (..., len(REQUEST_FEATURES)).
    """
    there, asked = replicas.astype(np.float64), request.astype(np.float64)[..., None]
    p50, p90 = np.maximum(asked[..., _P50, :], 1.0), asked[..., _P90, :]
    ttft_slo, tpot_slo = asked[..., _TTFT_SLO, :], asked[..., _TPOT_SLO, :]
    mean = analytic.mean_output(p50, p90)
    inflight = there[..., _INFLIGHT]
    typical = np.where(
        inflight > 0, there[..., _OUTPUT_THERE] / np.maximum(inflight, 1.0) * (mean / p50), mean
    )
    typical = np.maximum(typical, 1.0)
    ttft, tpot = there[..., _TTFT] / ttft_slo, there[..., _TPOT] / tpot_slo
    tpot_met = analytic.chance_met(tpot, analytic.TPOT_SPREAD)
    met = analytic.chance_met(ttft, analytic.TTFT_SPREAD) * tpot_met
    inflicted = there[..., _INFLICTED] / (typical * tpot_slo)
    tipping = analytic.MISS_COST * tpot_met * (1.0 - tpot_met) / (analytic.TPOT_SPREAD * tpot)
    terms = [ttft + tpot, 1.0 - met, inflicted, tipping * inflicted, there[..., _CONGESTION] / ttft_slo]
    known = sum(weight * term for weight, term in zip(_weights(DEFAULTS), terms, strict=False))
    terms.append(np.maximum(there[..., _MARGINAL_COST] - known, 0.0) / analytic.REUSE_WEIGHT)
    return np.stack(terms, axis=-1)


def weighted_terms(replicas: Float32, request: Float32) -> Float64:
    """What each term adds to the `marginal_cost` feature, in units of J, (..., n, 6); arguments and
    order as of `marginal_terms`."""
    terms: Float64 = marginal_terms(replicas, request) * np.array(_weights(DEFAULTS))
    return terms


class MarginalCost(ScoredPolicy):
    """Where this request adds least to the cluster's cost J.

    Its own TTFT and TPOT there, over their objectives, plus the delay it inflicts on the requests
    already there and on those still to come; computed with the observation by
    `predictors/analytic.py`, which has the formula and the default weights.
    """

    name: ClassVar[str] = "marginal-cost"
    precision: ClassVar[type[np.floating]] = np.float64

    def __init__(self, options: MarginalCostOptions, rng: np.random.Generator) -> None:
        super().__init__(rng, *_weights(options), float(options == DEFAULTS))

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """The `marginal_cost` feature, (..., n), in units of J; with other weights, its terms anew."""
        *weights, is_default = constants
        known: Float32 = observation.replicas[..., _MARGINAL_COST]
        if np.all(is_default):
            return known
        terms = marginal_terms(observation.replicas, observation.request)
        total = sum(weight * terms[..., i] for i, weight in enumerate(weights))
        weighted: Float32 = np.where(is_default, known, np.asarray(total, dtype=np.float32))
        return weighted


def _weights(options: MarginalCostOptions) -> tuple[float, ...]:
    return (
        options.own_weight,
        options.miss_cost,
        options.inflicted_weight,
        options.tipping_weight,
        options.congestion_weight,
        options.reuse_weight,
    )
