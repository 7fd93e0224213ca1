"""Service levels and the cost J: what every policy is judged by (docs/evaluation.md)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import analytic
from steersman.predictors import ledger as L
from steersman.predictors.features import (
    LARGE_MODEL_WEIGHTS_GIB,
    TPOT_SLO_LARGE_S,
    TPOT_SLO_S,
    TTFT_SLO_FACTOR,
    TTFT_SLO_FLOOR_S,
)
from steersman.traces.schema import Priority

Float64 = NDArray[np.float64]

TERM_CAP = 20.0
"""Each of the two latency terms counts at most this much."""
MISS_COST = 2.0
FAILED_COST = 2.0 * TERM_CAP + MISS_COST
"""Of a request that was refused, failed or never finished: 42."""
LOW_CLASS_WEIGHT = 0.25
"""Weight of P2 and P3; P0 and P1 have 1."""


@dataclass(frozen=True)
class Objectives:
    """Service levels of n requests on a pool."""

    ttft_s: Float64
    """(n,)"""
    tpot_s: float

    @classmethod
    def of(cls, state: Float64, prompt_tokens: Float64) -> Objectives:
        """The same rule as `predictors.features.slo_s`, for many requests.

        Args:
            state: (replicas, STATE_WIDTH) of the whole pool.
            prompt_tokens: (n,).
        """
        unloaded_s = analytic.unloaded_ttft_s(state, prompt_tokens[:, None])
        ttft_s = np.maximum(TTFT_SLO_FLOOR_S, TTFT_SLO_FACTOR * np.median(unloaded_s, axis=-1))
        large = float(state[:, L.WEIGHTS_GIB].max()) >= LARGE_MODEL_WEIGHTS_GIB
        return cls(ttft_s, TPOT_SLO_LARGE_S if large else TPOT_SLO_S)


@dataclass(frozen=True)
class Costs:
    """Of n requests; both (n,)."""

    cost: Float64
    met: NDArray[np.bool_]
    """Whether both objectives hold."""


def request_costs(
    ended_well: NDArray[np.bool_], ttft_s: Float64, tpot_s: Float64, objectives: Objectives
) -> Costs:
    """Cost of each request::

        min(TTFT / TTFT_SLO, 20) + min(TPOT / TPOT_SLO, 20) + 2 [SLO missed]

    and 42 for one that did not end well, whatever its times say.

    Args:
        ended_well: (n,), false for refused, failed and unfinished requests.
        ttft_s, tpot_s: (n,); TPOT is 0 for a single output token.
    """
    met = ended_well & (ttft_s <= objectives.ttft_s) & (tpot_s <= objectives.tpot_s)
    ttft = np.minimum(ttft_s / objectives.ttft_s, TERM_CAP)
    tpot = np.minimum(tpot_s / objectives.tpot_s, TERM_CAP)
    cost = np.where(ended_well, ttft + tpot + MISS_COST * ~met, FAILED_COST)
    return Costs(cost, met)


def class_weights(priority: NDArray[np.int8]) -> Float64:
    """Weight of each request in J, (n,): 1 for P0 and P1, a quarter for P2 and P3."""
    return np.where(priority >= Priority.BATCH, LOW_CLASS_WEIGHT, 1.0)
