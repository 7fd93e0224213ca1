"""Whether predictions mean what they say: predicted against actual, by deciles of what is predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Values = NDArray[np.float64]

BINS = 10


@dataclass(frozen=True)
class Calibration:
    """Of one predicted quantity, on n held-out cases."""

    quantity: str
    """`output`, `ttft` or `tpot`."""
    unit: str
    predicted: Values
    """(bins,): median predicted p50 of each decile of predicted p50."""
    actual: Values
    """(bins,): median of what happened there."""
    covered: Values
    """(bins,): share at or below the predicted p90."""
    cases: int


def calibration(quantity: str, unit: str, p50: Values, p90: Values, actual: Values) -> Calibration:
    """Deciles of predicted p50. All arrays (n,), n at least 1."""
    parts = [part for part in np.array_split(np.argsort(p50, kind="stable"), BINS) if len(part)]
    return Calibration(
        quantity=quantity,
        unit=unit,
        predicted=np.array([np.median(p50[part]) for part in parts]),
        actual=np.array([np.median(actual[part]) for part in parts]),
        covered=np.array([np.mean(actual[part] <= p90[part]) for part in parts]),
        cases=len(actual),
    )
