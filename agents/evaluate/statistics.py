"""Ratios of paired runs, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

CellT = TypeVar("CellT")

RESAMPLES = 2000
MARGIN = 0.02
"""By how much a policy may be worse and still count as not worse (EVALUATION, "Comparisons")."""
LEVEL = 0.05


@dataclass(frozen=True)
class Ratio:
    """A figure with its 95 % interval; under 1, the first of the two is better (cheaper)."""

    value: float
    lo: float
    hi: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.lo:.3f}, {self.hi:.3f}]"


def paired_ratio(
    cells: Mapping[CellT, tuple[Float64, Float64]], *, seed: int = 0, resamples: int = RESAMPLES
) -> Ratio:
    """exp(mean over cells and seeds of log(a / b)), and its paired bootstrap interval.

    Seeds are resampled within each cell, always in pairs; every cell counts the same, however many
    seeds it has. With few seeds the interval is narrower than it should be: claims need five or more.

    Args:
        cells: per cell, the figures of a and b by seed, (seeds,) each, in the same order, positive.

    Raises:
        ValueError: no cells, or a and b are not pairs of positive figures.
    """
    if not cells:
        raise ValueError("no cells to compare")
    rng = np.random.default_rng(seed)
    means = []
    draws = []
    for cell, (a, b) in cells.items():
        logs = _logs(cell, a, b)
        means.append(logs.mean())
        draws.append(logs[rng.integers(len(logs), size=(resamples, len(logs)))].mean(axis=1))
    lo, hi = np.quantile(np.mean(draws, axis=0), (0.025, 0.975))
    return Ratio(float(np.exp(np.mean(means))), float(np.exp(lo)), float(np.exp(hi)))


@dataclass(frozen=True)
class NonInferiority:
    """Whether a is not worse than b in one cell."""

    ratio: float
    """exp(mean of log(a / b))."""
    p: float
    """Of the hypothesis that it is worse by the margin or more, corrected for all cells tested."""
    holds: bool
    """Whether that is rejected at the 5 % level."""


def non_inferiority(
    cells: Mapping[CellT, tuple[Float64, Float64]], *, margin: float = MARGIN
) -> dict[CellT, NonInferiority]:
    """Test in every cell whether a is worse than b by `margin` or more, with Holm's correction.

    One-sided paired t-tests of log(a / b) against log(1 + margin): with the few seeds of a cell a
    bootstrap would reject too easily. "Not worse" of all cells together is the claim that it holds in
    each; then no correction would be needed, but single cells are claimed too.

    Args:
        cells: per cell, the figures of a and b by seed, (seeds,) each, in the same order, positive.

    Raises:
        ValueError: a cell has fewer than two seeds, or figures that are not pairs of positive numbers.
    """
    logs = {cell: _logs(cell, a, b) for cell, (a, b) in cells.items()}
    raw = [_p_worse(cell, values, float(np.log1p(margin))) for cell, values in logs.items()]
    return {
        cell: NonInferiority(float(np.exp(values.mean())), p, p <= LEVEL)
        for (cell, values), p in zip(logs.items(), holm(raw), strict=True)
    }


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values that keep the chance of any false rejection at the level (Holm 1979).

    With m hypotheses, the k-th smallest is multiplied by m - k + 1; none may fall below a smaller one.
    """
    order = np.argsort(p_values, kind="stable")
    adjusted, floor = np.empty(len(p_values)), 0.0
    for rank, index in enumerate(order.tolist()):
        floor = max(floor, min((len(p_values) - rank) * p_values[index], 1.0))
        adjusted[index] = floor
    return [float(p) for p in adjusted]


def _p_worse(cell: object, logs: Float64, margin: float) -> float:
    """p-value of mean(logs) >= margin."""
    from scipy import stats

    if len(logs) < 2:
        raise ValueError(f"cell {cell}: one seed shows no spread; run two or more")
    error = float(logs.std(ddof=1)) / np.sqrt(len(logs))
    distance = float(logs.mean()) - margin
    if error < 1e-12:  # the two are the same but for a factor
        return 0.0 if distance < 0 else 1.0
    return float(stats.t.cdf(distance / error, df=len(logs) - 1))


def _logs(cell: object, a: Float64, b: Float64) -> Float64:
    if a.shape != b.shape or a.ndim != 1 or not len(a) or not (np.all(a > 0) and np.all(b > 0)):
        raise ValueError(f"cell {cell}: figures {a} and {b} are not pairs of positive numbers")
    logs: Float64 = np.log(a / b)
    return logs


def jain_index(load: Float64) -> float:
    """Jain's fairness index, (Σx)² / (n Σx²): 1 is even, 1/n is all on one; 1 for nobody or no load
    at all."""
    squares = float((load**2).sum())
    return float(load.sum()) ** 2 / (len(load) * squares) if squares > 0 else 1.0


def max_over_mean(load: Float64) -> float:
    """The busiest over the mean; 1 for nobody or no load at all."""
    total = float(load.sum())
    return float(load.max()) * len(load) / total if total > 0 else 1.0
