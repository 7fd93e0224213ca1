"""Are the predictions still right? Live error over the last outcomes, and a detector of drift (SPEC A6).

The detector is Page's cumulative sum (E. S. Page, "Continuous inspection schemes", Biometrika 1954) over
the log residuals r = log(actual / predicted median), with a reference taken from the first of them::

    z = clip((r - median) / scale, ±3)         scale = 1.4826 * MAD, at least 0.15
    up   = max(0, up   + z - mean z - slack)   predictions have become too low
    down = max(0, down - z + mean z - slack)   too high
    wide = max(0, wide + |z| - mean |z| - slack)   wrong in both directions

It alarms when a sum exceeds the threshold. With these constants a change smaller than about 8 % is
none. On independent residuals there is less than one false alarm in 20 000 outcomes, whatever their
distribution (normal, Laplace, Student, log of exponential), and a change of 40 % shows within 150 where
they scatter by 30 % or less, later where by more. Errors of neighbouring requests resemble each other,
the more the nearer to saturation: there alarms are more frequent, and the refit that they ask for has
to prove itself.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

REFERENCE_OUTCOMES = 250
LEAST_SCALE = 0.15
SLACK = 0.5
THRESHOLD = 20.0
CLIP = 3.0

LEAST_MEASURED = {"ttft": 0.02, "tpot": 0.002, "output": 1.0}
"""Smaller values do not count in relative errors (EVALUATION, "Prediction"): seconds, and tokens."""
TARGETS = tuple(LEAST_MEASURED)
"""What is predicted: seconds, seconds and tokens."""


class LiveError:
    """Errors over the last outcomes. Constant work per outcome; figures sort when they are asked for.

    Args:
        least: actual values below it do not count in relative errors.
        window: how many outcomes count.
    """

    def __init__(self, least: float, *, window: int = 512) -> None:
        self._least = least
        self._errors = np.empty(window)
        self._covered = np.empty(window, dtype=np.bool_)
        self._counted = 0
        self._seen = 0

    @property
    def count(self) -> int:
        """Outcomes seen since the start, not only those in the window."""
        return self._seen

    @property
    def mdape(self) -> float:
        """Median of |p50 - actual| / actual; NaN without outcomes."""
        known = self._errors[: self._counted]
        return float(np.median(known)) if len(known) else math.nan

    @property
    def coverage_p90(self) -> float:
        """Share of actual values at or below the predicted p90; NaN without outcomes."""
        known = self._covered[: self._seen]
        return float(np.mean(known)) if len(known) else math.nan

    def observe(self, actual: float, p50: float, p90: float) -> None:
        """An outcome, positive and finite, and what had been predicted."""
        window = len(self._errors)
        self._covered[self._seen % window] = actual <= p90
        self._seen += 1
        if actual >= self._least:
            self._errors[self._counted % window] = abs(p50 - actual) / actual
            self._counted += 1


class DriftDetector:
    """Whether the errors are still what they were at first. See the module for the formula."""

    def __init__(
        self,
        *,
        reference: int = REFERENCE_OUTCOMES,
        threshold: float = THRESHOLD,
        slack: float = SLACK,
        spread: bool = True,
    ) -> None:
        self._needed = reference
        self._threshold = threshold
        self._slack = slack
        self._spread = spread
        self.restart()

    def restart(self) -> None:
        """Another model serves, or the world is accepted as it is: the next errors are the reference."""
        self.drifted = False
        """Whether it has alarmed since the last restart."""
        self._seen = 0
        self._first = np.empty(self._needed)
        self._centre = self._scale = self._mean = self._mean_abs = 0.0
        self._up = self._down = self._wide = 0.0
        self._runs = [0, 0, 0]

    @property
    def run(self) -> int:
        """Residuals since the largest sum was last nothing: about how long ago the change was."""
        sums = (self._up, self._down, self._wide)
        return self._runs[sums.index(max(sums))]

    @property
    def statistic(self) -> float:
        """The largest sum over the threshold: above 1 it alarms. 0 while the reference is taken."""
        return max(self._up, self._down, self._wide) / self._threshold

    def observe(self, residual: float) -> bool:
        """One log residual, finite; True if it raises the alarm."""
        self._seen += 1
        if self._seen <= self._needed:
            self._first[self._seen - 1] = residual
            if self._seen == self._needed:
                self._settle(self._first)
            return False
        z = min(max((residual - self._centre) / self._scale, -CLIP), CLIP)
        slack, runs, wide = self._slack, self._runs, 0.0
        self._up = up = max(0.0, self._up + z - self._mean - slack)
        self._down = down = max(0.0, self._down - z + self._mean - slack)
        runs[0] = runs[0] + 1 if up > 0.0 else 0
        runs[1] = runs[1] + 1 if down > 0.0 else 0
        if self._spread:
            self._wide = wide = max(0.0, self._wide + abs(z) - self._mean_abs - slack)
            runs[2] = runs[2] + 1 if wide > 0.0 else 0
        if self.drifted or max(up, down, wide) <= self._threshold:
            return False
        self.drifted = True
        return True

    def _settle(self, residuals: NDArray[np.float64]) -> None:
        self._centre = float(np.median(residuals))
        spread = float(np.median(np.abs(residuals - self._centre)))
        self._scale = max(1.4826 * spread, LEAST_SCALE)
        z = np.clip((residuals - self._centre) / self._scale, -CLIP, CLIP)
        self._mean, self._mean_abs = float(z.mean()), float(np.abs(z).mean())
