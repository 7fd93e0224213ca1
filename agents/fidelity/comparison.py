"""What every reference is compared by: quantiles of distributions, not single requests.

Systems like these are chaotic request by request: the same engine with its costs changed by a
thousandth gives a request quite other times. So ours is the mean over several runs, each with every cost
changed by that much at random.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

PERTURBATION = 0.001
"""Relative standard deviation of each cost between runs."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One figure of one run, ours and theirs."""

    reference: str
    """For example `vidur`."""
    run: str
    metric: str
    """For example `ttft_p50`."""
    theirs: float
    ours: float
    unit: str = "s"
    group: str = "predicted"
    """`fitted`: the fit has seen it; `saturated`: requests pile up without end; else `predicted`."""

    @property
    def error(self) -> float:
        """Signed, as a share of theirs."""
        return self.ours / self.theirs - 1.0


def quantiles(times: Mapping[str, Floats]) -> dict[str, float]:
    """`{"ttft": …}` to `{"ttft_p50": …, "ttft_p90": …, …}`; unknown times are left out."""
    return {
        f"{name}_{label}": float(np.quantile(values[np.isfinite(values)], share))
        for name, values in times.items()
        for label, share in QUANTILES.items()
    }


def perturbed_mean(
    play: Callable[[Floats], Mapping[str, float]], cost: Floats, *, runs: int, seed: int = 0
) -> dict[str, float]:
    """Mean of each figure over runs with slightly other costs."""
    rng = np.random.default_rng(seed)
    figures = [
        play(cost * (1.0 + PERTURBATION * rng.standard_normal(len(cost)))) for _ in range(max(runs, 1))
    ]
    return {name: float(np.mean([figure[name] for figure in figures])) for name in figures[0]}


def median_error(comparisons: Iterable[Comparison], metric: str, group: str = "predicted") -> float:
    """Median over runs of the absolute error of one figure; NaN if no run has it."""
    errors = [abs(c.error) for c in comparisons if c.metric == metric and c.group == group]
    return float(np.median(errors)) if errors else float("nan")
