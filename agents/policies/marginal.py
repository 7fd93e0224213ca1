"""`marginal-cost`: where a request adds least to what all requests together cost."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.scored import Constants, ScoredPolicy
from steersman.predictors import analytic
from steersman.predictors.features import COST_TERMS, REPLICA_INDEX
from steersman.traces.schema import Observation
from steersman.traces.settings import Settings

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]

_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]
_TERMS = [REPLICA_INDEX[name] for name in COST_TERMS]


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
        default=analytic.REUSE_WEIGHT,
        ge=0.0,
        description="Weight of computing what is cached elsewhere.",
    )
    eviction_weight: float = Field(
        default=analytic.EVICTION_WEIGHT,
        ge=0.0,
        description="Weight of the cached prefixes it displaces.",
    )


DEFAULTS = MarginalCostOptions()


def weighted_terms(replicas: Float32) -> Float64:
    """What each term adds to the `marginal_cost` feature, in units of J, (..., n, len(COST_TERMS)).

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
    """
    terms: Float64 = replicas[..., _TERMS].astype(np.float64) * np.array(analytic.TERM_WEIGHTS)
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
        terms = [observation.replicas[..., i].astype(np.float64) for i in _TERMS]
        total = analytic.weighted(terms, weights)
        weighted: Float32 = np.where(is_default, known, np.asarray(total, dtype=np.float32))
        return weighted


def _weights(options: MarginalCostOptions) -> tuple[float, ...]:
    """In the order of `COST_TERMS`."""
    return (
        options.own_weight,
        options.own_weight,
        options.miss_cost,
        options.inflicted_weight,
        options.tipping_weight,
        options.congestion_weight,
        options.reuse_weight,
        options.eviction_weight,
    )
