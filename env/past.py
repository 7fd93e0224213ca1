"""What the past says of every request of a trace, compiled: the simulator's `predictors/past.py`.

Training draws thousands of traces, and the quantiles of a tenant's last answers were most of what it
cost to make one. Here the windows of all tenants are plain arrays in machine code. What is computed is
defined by `TenantHistory`, whose constants are used; a test holds that both say the same.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.jit import inner, njit
from steersman.predictors import past as plain
from steersman.predictors.features import HISTORY_FEATURES
from steersman.predictors.history import (
    HISTORY_WIDTH,
    LEAST_LOSS,
    LEVELS,
    MEMORY,
    MODEL_WINDOW,
    MOST_MODELS,
    MOST_TENANTS,
    MOST_TOKENS,
    SHARPNESS,
    WINDOWS,
)
from steersman.traces.trace import Trace

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]

_SHORTEST = WINDOWS[0]
_SHOWN = (1, 0, 2)
"""Order in which the windows' quantiles are features."""


def causal_past(trace: Trace) -> Float64:
    """`predictors.past.causal_past`, (len(trace), len(HISTORY_FEATURES)), in a tenth of the time."""
    keys = np.stack([trace.tenant, trace.model], axis=1)
    _, whose = np.unique(keys, axis=0, return_inverse=True)
    _, model = np.unique(trace.model, return_inverse=True)
    if max(whose, default=0) >= MOST_TENANTS or max(model, default=0) >= MOST_MODELS:
        return plain.causal_past(trace)  # which forgets some of them
    ended = plain.ends(trace)
    tokens = np.minimum(trace.output_tokens[ended.order].astype(np.int64), MOST_TOKENS)
    features = np.zeros((len(trace), len(HISTORY_FEATURES)))
    _tenants(whose.ravel(), model.ravel(), *ended, tokens, features)
    if (trace.session >= 0).any() or (trace.tools > 0).any():
        features[:, HISTORY_WIDTH:] = plain.causal_turns(trace, ended)
    return features


@njit
def _tenants(
    whose: Int64, model: Int64, order: Int64, before: Int64, tokens: Int64, features: Float64
) -> None:
    """`TenantHistory.features` at every arrival, into the first HISTORY_WIDTH columns.

    Args:
        whose: (n,), which tenant and model, counted from 0.
        model: (n,), which model.
        order: (ended,), rows in the order in which they end.
        before: (n,), how many have ended when each row arrives.
        tokens: (ended,), of the answers in that order.
    """
    answers = np.zeros(np.max(whose) + 1 if len(whose) else 0, dtype=np.int64)
    of_model = np.zeros(np.max(model) + 1 if len(model) else 0, dtype=np.int64)
    for row in order:
        answers[whose[row]] += 1
        of_model[model[row]] += 1
    first, first_of_model = _starts(answers), _starts(of_model)
    told = np.empty(len(order), dtype=np.int64)
    told_of_model = np.empty(len(order), dtype=np.int64)
    ordered = np.empty((len(WINDOWS), len(order)), dtype=np.int64)
    ordered_of_model = np.empty(len(order), dtype=np.int64)
    losses = np.full((len(answers), len(WINDOWS), len(LEVELS)), LEAST_LOSS)
    answers[:] = 0
    of_model[:] = 0
    ended = 0
    for row in range(len(whose)):
        while ended < before[row]:
            who, value = whose[order[ended]], tokens[ended]
            start, known = first[who], answers[who]
            if known > _SHORTEST:
                _judge(ordered, start, known, value, losses[who])
            for i in range(len(WINDOWS)):
                _slide(ordered[i], told, start, known, WINDOWS[i], value)
            told[start + known] = value
            answers[who] += 1
            which = model[order[ended]]
            start, known = first_of_model[which], of_model[which]
            _slide(ordered_of_model, told_of_model, start, known, MODEL_WINDOW, value)
            told_of_model[start + known] = value
            of_model[which] += 1
            ended += 1
        who, which = whose[row], model[row]
        if answers[who] > 0:
            _tell(ordered, first[who], answers[who], losses[who], features[row])
        elif of_model[which] > 0:
            size = min(of_model[which], MODEL_WINDOW)
            for i in range(len(LEVELS)):
                level = _quantile(ordered_of_model, first_of_model[which], size, LEVELS[i])
                for window in range(len(WINDOWS) + 1):
                    features[row, len(LEVELS) * window + i] = level


@inner
def _starts(counts: Int64) -> Int64:
    """Where each one's part of a common array begins."""
    starts = np.zeros(len(counts), dtype=np.int64)
    starts[1:] = np.cumsum(counts)[:-1]
    return starts


@inner
def _slide(values: Int64, told: Int64, start: int, known: int, window: int, value: int) -> None:
    """Put a value in its place among the sorted last ones, for the oldest of them if they are `window`.

    Args:
        values: `min(known, window)` sorted ones, from `start` on.
        told: `known` as they came, from `start` on.
    """
    size = known
    if known >= window:
        size = window - 1
        oldest = told[start + known - window]
        at = start + np.searchsorted(values[start : start + window], oldest)
        for i in range(at, start + size):
            values[i] = values[i + 1]
    at = start + size
    while at > start and values[at - 1] > value:
        values[at] = values[at - 1]
        at -= 1
    values[at] = value


@inner
def _quantile(values: Int64, start: int, size: int, level: float) -> float:
    """`RollingQuantiles.quantile`."""
    position = level * (size - 1)
    low = int(position)
    below = float(values[start + low])
    if low < size - 1:
        below += (position - low) * (values[start + low + 1] - below)
    return below


@inner
def _judge(ordered: Int64, start: int, known: int, value: int, losses: Float64) -> None:
    """How well each window foresaw a value."""
    for i in range(len(WINDOWS)):
        for j in range(len(LEVELS)):
            error = value - _quantile(ordered[i], start, min(known, WINDOWS[i]), LEVELS[j])
            own = LEVELS[j] * error if error > 0.0 else (LEVELS[j] - 1.0) * error
            losses[i, j] = MEMORY * losses[i, j] + own


@inner
def _tell(ordered: Int64, start: int, known: int, losses: Float64, features: Float64) -> None:
    """One tenant's features."""
    for j in range(len(LEVELS)):
        total = weights = 0.0
        least = np.min(losses[:, j])
        for i in range(len(WINDOWS)):
            quantile = _quantile(ordered[_SHOWN[i]], start, min(known, WINDOWS[_SHOWN[i]]), LEVELS[j])
            features[len(LEVELS) * i + j] = quantile
        for i in range(len(WINDOWS)):
            weight = (least / losses[i, j]) ** SHARPNESS
            total += weight * _quantile(ordered[i], start, min(known, WINDOWS[i]), LEVELS[j])
            weights += weight
        shortest = _quantile(ordered[0], start, min(known, _SHORTEST), LEVELS[j])
        features[len(LEVELS) * len(WINDOWS) + j] = shortest if known <= _SHORTEST else total / weights
    features[HISTORY_WIDTH - 1] = min(known, WINDOWS[-1])
