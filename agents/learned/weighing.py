"""Weights of the marginal cost's terms that depend on the pool, the request and the candidate.

One set of weights for everything is a compromise: how much a delay that others suffer counts against
one's own depends on how full the pool is, on how old the metrics are, on what the request is and how
much it counts. Here each weight is its default times the exponential of a linear function of signals::

    cost = marginal cost
           + sum over terms k of  default_k * (exp(clip(change_k)) - 1) * term_k
    change_k = bias_k + slope_k · signals of the context + slope'_k · signals of the candidate

With all coefficients 0 it is the marginal cost. There are so few of them that they can be found on the
goal itself, J of whole episodes (`evolution.py`), where no horizon has to be chosen and no credit to be
assigned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from steersman.predictors import analytic
from steersman.predictors.features import (
    COST_TERMS,
    POOL_FEATURES,
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
)

CONTEXT = (*REQUEST_FEATURES, *POOL_FEATURES)
"""Columns of the request and the pool, one after the other."""


class Signal(NamedTuple):
    """One input: log((max(x, least) + floor) / centre) / width, about unit normal, clipped."""

    feature: str
    floor: float
    centre: float
    width: float
    least: float = 0.0


CONTEXT_SIGNALS = (
    Signal("mean_tpot_share", 1e-3, 0.37, 1.0),
    Signal("mean_ttft_share", 1e-3, 0.14, 2.0),
    Signal("mean_age_s", 1.0, 1.65, 1.0),
    Signal("speed_ratio", 1e-3, 1.0, 1.4),
    Signal("candidates", 0.01, 8.0, 1.0),
    Signal("best_match_fraction", 1.0, 1.0, 0.7),
    Signal("output_p50", 1.0, 200.0, 1.5),
    Signal("input_tokens", 1.0, 1000.0, 1.5),
    # P0 and P1 count alike in J, and so they are 0; P2 is 1.
    Signal("priority", 0.0, 1.0, math.log(2.0), least=1.0),
)
"""Of CONTEXT."""
CANDIDATE_SIGNALS = (
    Signal("tpot_share", 1e-3, 0.37, 1.0),
    Signal("ttft_share", 1e-3, 0.14, 2.0),
    Signal("kv_usage", 0.05, 0.3, 1.0),
    Signal("age_s", 1.0, 1.65, 1.0),
    Signal("prefill_tokens", 100.0, 1000.0, 2.0),
    Signal("batch_use", 0.05, 0.3, 1.0),
    Signal("queue", 1.0, 2.0, 1.5),
    Signal("cache_age_s", 5.0, 100.0, 1.2),
)
"""Of REPLICA_FEATURES."""
MOST_SIGNAL = 3.0
"""Signals are clipped to plus or minus this: far outside, the guard decides."""
MOST_CHANGE = 3.0
"""Bound on the logarithm of a weight's change."""

FREE = COST_TERMS[1:]
"""Terms whose weights vary: all but the first, since only their ratios choose."""
FREE_COLUMNS = [REPLICA_INDEX[name] for name in FREE]
FREE_WEIGHTS = analytic.TERM_WEIGHTS[1:]
"""Their defaults."""
SHAPE = (len(FREE), 1 + len(CONTEXT_SIGNALS) + len(CANDIDATE_SIGNALS))
"""Of the coefficients: for each free term its bias and its slopes."""
FIRST_CANDIDATE = 1 + len(CONTEXT_SIGNALS)
"""Column of the coefficients at which those of the candidates' signals begin."""

_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]
_DEFAULTS = torch.tensor(FREE_WEIGHTS)


class Signals:
    """Reads signals off rows of features.

    Args:
        signals: which.
        features: names of the rows' columns.
    """

    def __init__(self, signals: Sequence[Signal], features: Sequence[str]) -> None:
        self.columns = [features.index(signal.feature) for signal in signals]
        self.least = torch.tensor([signal.least for signal in signals])
        self.floors = torch.tensor([signal.floor for signal in signals])
        self.scales = 1.0 / torch.tensor([signal.width for signal in signals])
        self.shifts = -torch.log(torch.tensor([signal.centre for signal in signals])) * self.scales

    def read(self, rows: Tensor) -> Tensor:
        """(..., features) → (..., signals)."""
        known = torch.maximum(rows[..., self.columns], self.least) + self.floors
        return (torch.log(known) * self.scales + self.shifts).clamp(-MOST_SIGNAL, MOST_SIGNAL)


OF_CONTEXT = Signals(CONTEXT_SIGNALS, CONTEXT)
OF_CANDIDATE = Signals(CANDIDATE_SIGNALS, REPLICA_FEATURES)


def weighed_cost(replicas: Tensor, context: Tensor, coefficients: Tensor) -> Tensor:
    """Cost of every candidate in units of J, (b, n). See the module for the formula.

    Args:
        replicas: (b, n, len(REPLICA_FEATURES)), natural units.
        context: (b, len(CONTEXT)).
        coefficients: SHAPE, or (b, *SHAPE) for other ones in every row.
    """
    slopes = coefficients[..., 1:FIRST_CANDIDATE]
    shared = coefficients[..., 0] + (slopes * OF_CONTEXT.read(context).unsqueeze(-2)).sum(dim=-1)
    own = OF_CANDIDATE.read(replicas) @ coefficients[..., FIRST_CANDIDATE:].transpose(-1, -2)
    change = (shared.unsqueeze(-2) + own).clamp(-MOST_CHANGE, MOST_CHANGE)
    added = (replicas[..., FREE_COLUMNS] * (_DEFAULTS * torch.expm1(change))).sum(dim=-1)
    return replicas[..., _MARGINAL_COST] + added
