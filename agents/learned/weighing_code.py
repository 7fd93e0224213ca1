"""`weighed_cost` by machine code, for the many candidates of a search: torch's takes five times as long.

The formula is said in `weighing.py`; a test holds the two together. Everything that it depends on is an
argument, so that no stale machine code is kept.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.agents.learned import weighing
from steersman.agents.learned.weighing import OF_CANDIDATE, OF_CONTEXT, Signals
from steersman.env.jit import njit
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]


class _Scales(NamedTuple):
    """`Signals` as arrays."""

    columns: Int64
    least: Float64
    floors: Float64
    scales: Float64
    shifts: Float64

    @staticmethod
    def of(signals: Signals) -> _Scales:
        numbers = (signals.least, signals.floors, signals.scales, signals.shifts)
        return _Scales(np.array(signals.columns), *(each.numpy().astype(np.float64) for each in numbers))


_CONTEXT, _CANDIDATE = _Scales.of(OF_CONTEXT), _Scales.of(OF_CANDIDATE)
_BOUNDS = np.array([weighing.MOST_SIGNAL, weighing.MOST_CHANGE])
_TERMS = np.array(weighing.FREE_COLUMNS)
_WEIGHTS = np.array(weighing.FREE_WEIGHTS)


def weighed_costs(seen: Observation, coefficients: Float64) -> Float64:
    """Cost of every candidate in units of J, (b, n); infinite where it may not be chosen.

    Args:
        coefficients: (b, *SHAPE).
    """
    cost = np.full(seen.mask.shape, np.inf)
    context = np.concatenate([seen.request, seen.pool], axis=-1)
    marginal = REPLICA_INDEX["marginal_cost"]
    known = (_CONTEXT, _CANDIDATE, _BOUNDS, _TERMS, _WEIGHTS, marginal)
    _weigh(seen.replicas, context, seen.mask, coefficients, *known, cost)
    return cost


@njit
def _weigh(
    replicas: Float32,
    context: Float32,
    mask: NDArray[np.bool_],
    coefficients: Float64,
    of_context: _Scales,
    of_candidate: _Scales,
    bounds: Float64,
    terms: Int64,
    weights: Float64,
    marginal: int,
    cost: Float64,
) -> None:
    most_signal, most_change = bounds
    first = 1 + len(of_context.columns)
    shared, own = np.empty(len(terms)), np.empty(len(of_candidate.columns))
    for i in range(len(mask)):
        shared[:] = coefficients[i, :, 0]
        for s in range(first - 1):
            signal = _signal(context[i], of_context, s, most_signal)
            for k in range(len(terms)):
                shared[k] += coefficients[i, k, 1 + s] * signal
        for r in range(mask.shape[1]):
            if not mask[i, r]:
                continue
            for s in range(len(own)):
                own[s] = _signal(replicas[i, r], of_candidate, s, most_signal)
            total = float(replicas[i, r, marginal])
            for k in range(len(terms)):
                change = shared[k]
                for s in range(len(own)):
                    change += coefficients[i, k, first + s] * own[s]
                change = min(max(change, -most_change), most_change)
                total += replicas[i, r, terms[k]] * weights[k] * np.expm1(change)
            cost[i, r] = total


@njit
def _signal(row: Float32, known: _Scales, s: int, most: float) -> float:
    value = max(float(row[known.columns[s]]), known.least[s]) + known.floors[s]
    scaled: float = np.log(value) * known.scales[s] + known.shifts[s]
    return min(max(scaled, -most), most)
