"""Is a refitted model better than the one that serves? On the newest outcomes, which neither has seen.

Both predict the same held-out requests. Their losses are compared pair by pair, averaged over blocks of
neighbouring requests, whose errors resemble each other; the new model is better if a one-sided t-test
over the blocks says so at 5 %, if it is better by at least `LEAST_GAIN`, and if no part got worse.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

BLOCKS = 20
T_95 = 1.729
"""Student's t for a one-sided test at 5 %, with BLOCKS - 1 degrees of freedom."""
LEAST_GAIN = 0.03
"""Of the loss: what a change of models must be worth, since what is best on a few minutes may not be on
the next."""
MOST_HARM = 0.03
"""By how much one part's loss may grow while the whole shrinks."""
LEVELS = (0.5, 0.9)


@dataclass(frozen=True)
class Verdict:
    """What came of a comparison."""

    better: bool
    reason: str
    """One line."""
    figures: Mapping[str, float]
    """Loss, median absolute error and p90 coverage of each part, `old` and `new`."""


def pinball_losses(actual: Float64, quantiles: Float64) -> Float64:
    """Pinball loss of each case, p50 and p90 together, (n,).

    Args:
        actual: (n,)
        quantiles: (n, 2): p50 and p90, in the unit of `actual`.
    """
    losses = np.zeros(len(actual))
    for level, predicted in zip(LEVELS, quantiles.T, strict=True):
        error = actual - predicted
        losses += np.maximum(level * error, (level - 1.0) * error)
    return losses


@dataclass(frozen=True)
class Part:
    """One predicted quantity on n held-out requests; NaN where there was none to predict."""

    actual: Float64
    """(n,)"""
    old: Float64
    """(n, 2): p50 and p90 of the model that serves."""
    new: Float64
    least: float
    """Smaller actual values do not count in relative errors."""


def compare(parts: Mapping[str, Part]) -> Verdict:
    """Judge a model by all that it predicts, each part as important as any other.

    Args:
        parts: by name, all of the same n requests in order of time.
    """
    figures: dict[str, float] = {}
    total = np.zeros(len(next(iter(parts.values())).actual))
    harmed = ""
    for name, part in parts.items():
        known = np.isfinite(part.actual) & (part.actual > 0.0)
        actual = np.log(np.where(known, part.actual, 1.0))
        losses = [pinball_losses(actual, np.log(guess))[known] for guess in (part.old, part.new)]
        if not known.any():
            continue
        old, new = (float(each.mean()) for each in losses)
        total[known] += (losses[1] - losses[0]) / max(old, 1e-9)
        figures |= {f"{name}.old.loss": old, f"{name}.new.loss": new}
        figures |= _errors(f"{name}.old", part.actual[known], part.old[known], part.least)
        figures |= _errors(f"{name}.new", part.actual[known], part.new[known], part.least)
        if new > old * (1.0 + MOST_HARM):
            harmed = f"{name} would become {new / old - 1.0:.1%} worse"
    gain = -float(total.mean()) / len(parts)
    blocks = np.array([block.mean() for block in np.array_split(total, BLOCKS) if len(block)])
    error = float(blocks.std(ddof=1)) / len(blocks) ** 0.5 if len(blocks) > 1 else np.inf
    figures["gain"] = gain
    if harmed:
        return Verdict(False, harmed, figures)
    if gain < LEAST_GAIN or float(blocks.mean()) + T_95 * error >= 0.0:
        return Verdict(False, f"not better: its loss is {gain:+.1%} smaller, within chance", figures)
    return Verdict(True, f"better: its loss is {gain:.1%} smaller", figures)


def _errors(name: str, actual: Float64, quantiles: Float64, least: float) -> dict[str, float]:
    counted = actual >= least
    error = np.abs(quantiles[:, 0] - actual)[counted] / actual[counted]
    return {
        f"{name}.mdape": float(np.median(error)) if counted.any() else float("nan"),
        f"{name}.coverage_p90": float(np.mean(actual <= quantiles[:, 1])),
    }
