"""Fit what an iteration costs, from when requests got their first and last tokens.

Under a given schedule every request's times are linear in the cost of iterations: they are sums of the
iterations it went through. So: play the schedule with a guess, add up each request's features, regress
the measured times on them robustly, and play again with the better guess. A few rounds settle; direct
optimisers stall, since the schedule jumps when a cost changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

Floats = NDArray[np.float64]

HUBER = 1.5
"""Residuals beyond so many (robust) standard deviations weigh less."""
GOOD_ENOUGH = 0.1
"""Error of a fit that needs no other first guess."""
RESTARTS = (0.5, 0.2, 0.05)
"""The first guess times these. One that is too slow piles up queues that never were, and the rounds do
not find out of them; from one that is too fast they find up."""


class Schedule(Protocol):
    """What playing requests gives: see `Played` in `vidur.py`."""

    @property
    def ttft_s(self) -> Floats:
        """(n,)"""

    @property
    def e2e_s(self) -> Floats:
        """(n,)"""

    @property
    def features(self) -> Floats:
        """(n, 2, features)"""


@dataclass(frozen=True, slots=True)
class Measured:
    """Times of n requests; a NaN is not known, and not fitted."""

    ttft_s: Floats
    e2e_s: Floats


@dataclass(frozen=True, slots=True)
class Fit:
    """The best cost found, and how well it does."""

    cost: Floats
    error: float
    """Mean over TTFT and E2E of the mean relative error of the quantiles 5, 15, … 95 %."""
    rounds: int


def fit_cost(
    play: Callable[[Floats], Schedule], measured: Measured, first: Floats, *, rounds: int = 12
) -> Fit:
    """Fit a cost of features, all of them nonnegative.

    Args:
        play: the schedule under a cost.
        measured: what it should give; requests in the same order.
        first: a guess. If it leads to no good fit, fractions of it are tried.
        rounds: of playing and regressing; the one that does best is kept.
    """
    best = _descend(play, measured, np.array(first, dtype=np.float64), rounds)
    for factor in RESTARTS:
        if best.error <= GOOD_ENOUGH:
            break
        again = _descend(play, measured, factor * np.asarray(first, dtype=np.float64), rounds)
        best = min(best, again, key=lambda fit: fit.error)
    return best


def _descend(play: Callable[[Floats], Schedule], measured: Measured, cost: Floats, rounds: int) -> Fit:
    best = Fit(cost, np.inf, 0)
    for done in range(rounds + 1):
        played = play(cost)
        error = distance(played, measured)
        if error < best.error:
            best = Fit(cost, error, done)
        if done < rounds:
            fresh = _regress(played.features, measured)
            cost = fresh if done == 0 else 0.5 * (cost + fresh)
    return best


def distance(played: Schedule, measured: Measured) -> float:
    """See `Fit.error`."""
    shares = np.arange(0.05, 1.0, 0.1)
    errors = []
    for ours, theirs in ((played.ttft_s, measured.ttft_s), (played.e2e_s, measured.e2e_s)):
        known = np.isfinite(theirs) & np.isfinite(ours)
        if known.any():
            wanted = np.quantile(theirs[known], shares)
            errors.append(np.mean(np.abs(np.quantile(ours[known], shares) / wanted - 1.0)))
    return float(np.mean(errors)) if errors else np.inf


def _regress(features: Floats, measured: Measured) -> Floats:
    """Relative errors, by iteratively reweighted nonnegative least squares (Huber's weights)."""
    decode = features[:, 1] - features[:, 0]
    matrix = np.concatenate([features[:, 0], decode])
    target = np.concatenate([measured.ttft_s, measured.e2e_s - measured.ttft_s])
    known = np.isfinite(target) & (target > 0) & np.isfinite(matrix).all(axis=1) & matrix.any(axis=1)
    matrix = matrix[known] / target[known, None]
    scale = np.abs(matrix).max(axis=0)
    scale[scale == 0] = 1.0
    matrix = matrix / scale
    weights = np.ones(len(matrix))
    found = np.zeros(matrix.shape[1])
    for _ in range(8):
        root = np.sqrt(weights)
        found, _ = nnls(matrix * root[:, None], root)
        residual = np.abs(matrix @ found - 1.0)
        spread = max(1.4826 * float(np.median(residual)), 1e-6)
        weights = np.minimum(1.0, HUBER * spread / np.maximum(residual, 1e-12))
    cost: Floats = found / scale
    return cost
