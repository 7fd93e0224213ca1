"""Ratios of paired runs, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

RESAMPLES = 2000


@dataclass(frozen=True)
class Ratio:
    """A figure with its 95 % interval; under 1, the first of the two is better (cheaper)."""

    value: float
    lo: float
    hi: float

    def __str__(self) -> str:
        return f"{self.value:.3f} [{self.lo:.3f}, {self.hi:.3f}]"


def paired_ratio(
    cells: Mapping[object, tuple[Float64, Float64]], *, seed: int = 0, resamples: int = RESAMPLES
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
        if a.shape != b.shape or a.ndim != 1 or not len(a) or not (np.all(a > 0) and np.all(b > 0)):
            raise ValueError(f"cell {cell}: figures {a} and {b} are not pairs of positive numbers")
        logs = np.log(a / b)
        means.append(logs.mean())
        draws.append(logs[rng.integers(len(logs), size=(resamples, len(logs)))].mean(axis=1))
    lo, hi = np.quantile(np.mean(draws, axis=0), (0.025, 0.975))
    return Ratio(float(np.exp(np.mean(means))), float(np.exp(lo)), float(np.exp(hi)))


def jain_index(load: Float64) -> float:
    """Jain's fairness index, (Σx)² / (n Σx²): 1 is even, 1/n is all on one; 1 for nobody or no load
    at all."""
    squares = float((load**2).sum())
    return float(load.sum()) ** 2 / (len(load) * squares) if squares > 0 else 1.0


def max_over_mean(load: Float64) -> float:
    """The busiest over the mean; 1 for nobody or no load at all."""
    total = float(load.sum())
    return float(load.max()) * len(load) / total if total > 0 else 1.0
