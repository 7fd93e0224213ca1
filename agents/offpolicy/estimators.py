"""Off-policy estimates of what a decision would have cost under another policy.

With w = pi(a|x) / mu(a|x), the target's chance of what was done over the logging policy's, r its cost,
and q(x, a) a model of costs::

    IPS    mean(w r)                                    Horvitz and Thompson 1952
    SNIPS  sum(w r) / sum(w)                            Swaminathan and Joachims 2015
    DR     mean(sum_a pi(a|x) q(x, a) + w (r - q))      Dudik, Langford and Li 2011

Weights are clipped at `clip`: less variance for some bias. Each estimate comes with the effective sample
size (sum w)^2 / sum w^2 (Kish 1965) and the share of decisions whose weight was cut; where either says
that few decisions carry it, no interval makes it sound.

**They are biased here**, and say so: a choice changes the queues that later requests meet, which no
weight of its own request knows. They may object to a challenger; they never promote one.

Intervals are bootstrapped over blocks of consecutive decisions, since neighbours meet the same queues.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.statistics import RESAMPLES, Ratio
from steersman.traces.errors import ConfigError

Float64 = NDArray[np.float64]

CLIP = 100.0
"""Largest weight. With 1 % of exploration over 8 candidates an explored choice weighs 800 unclipped."""
BLOCKS = 50
ESTIMATORS = ("ips", "snips", "dr")


@dataclass(frozen=True)
class Logged:
    """n decisions in order of time."""

    cost: Float64
    """(n,) what came of them, class weights included."""
    propensity: Float64
    """(n,) chance with which the logging policy did what it did; in (0, 1]."""
    chance: Float64
    """(n,) chance with which the target would have done the same; in [0, 1]."""
    modelled: Float64
    """(n,) what the model says that what was done costs."""
    expected: Float64
    """(n,) what the model says that the target's choice costs, on average over its draws."""

    def __post_init__(self) -> None:
        shapes = {getattr(self, each.name).shape for each in fields(self)}
        if len(shapes) != 1 or len(next(iter(shapes))) != 1:
            raise ValueError(f"columns of different shapes: {sorted(shapes)}")
        if not ((self.propensity > 0.0) & (self.propensity <= 1.0)).all():
            raise ValueError("a propensity is not in (0, 1]")

    def __len__(self) -> int:
        return len(self.cost)


@dataclass(frozen=True)
class Estimate:
    """What the target would have cost, over what the logged decisions did cost."""

    name: str
    """One of `ESTIMATORS`."""
    value: float
    """Mean cost of a decision."""
    ratio: Ratio
    """Over the mean that was logged, with its 95 % interval; under 1 the target is cheaper."""
    effective: float
    """Effective sample size: so many decisions with equal weights would say as much."""
    clipped: float
    """Share of decisions whose weight was cut."""
    mean_weight: float
    """1 where the log covers what the target does; far from it, it does not."""


def estimate(
    logged: Logged,
    *,
    clip: float = CLIP,
    blocks: int = BLOCKS,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, Estimate]:
    """All estimators on the same decisions.

    Args:
        clip: largest weight.
        blocks: of consecutive decisions, for the bootstrap; no more than there are decisions.

    Raises:
        ConfigError: no decisions, or nothing that cost anything.
    """
    if not len(logged) or not (logged.cost.sum() > 0.0):
        raise ConfigError("no logged decision with a cost to estimate from; log more traffic")
    raw = logged.chance / logged.propensity
    weight = np.minimum(raw, clip)
    columns = np.stack(
        (
            np.ones(len(logged)),
            logged.cost,
            weight,
            weight * logged.cost,
            logged.expected + weight * (logged.cost - logged.modelled),
        )
    )
    parts = np.array_split(np.arange(len(logged)), min(blocks, len(logged)))
    sums = np.stack([columns[:, part].sum(axis=1) for part in parts])  # (blocks, 5)
    rng = np.random.default_rng(seed)
    drawn = sums[rng.integers(len(parts), size=(resamples, len(parts)))].sum(axis=1)
    values, spread = _values(sums.sum(axis=0)), _values(drawn.T)
    square = float((weight**2).sum())
    found = {}
    for name in ESTIMATORS:
        lo, hi = _interval(spread[name] / spread["logged"])
        found[name] = Estimate(
            name=name,
            value=float(values[name]),
            ratio=Ratio(float(values[name] / values["logged"]), lo, hi),
            effective=float(weight.sum()) ** 2 / square if square > 0.0 else 0.0,
            clipped=float((raw > clip).mean()),
            mean_weight=float(weight.mean()),
        )
    return found


def _values(sums: Float64) -> dict[str, Float64]:
    """The estimates from sums over decisions, (5, ...)."""
    count, cost, weight, weighted, robust = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        snips = np.where(weight > 0.0, weighted / weight, np.nan)
    return {
        "logged": cost / count,
        "ips": weighted / count,
        "snips": snips,
        "dr": robust / count,
    }


def _interval(draws: Float64) -> tuple[float, float]:
    """95 %, of the draws that have a value."""
    known = draws[np.isfinite(draws)]
    if not len(known):
        return float("nan"), float("nan")
    lo, hi = np.quantile(known, (0.025, 0.975))
    return float(lo), float(hi)
