"""Whether a policy's choices cost more than those of anybody who looks at two replicas."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import REPLICA_INDEX

Float32 = NDArray[np.float32]

_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]


class RegretWatch:
    """Compares the marginal cost of choices with that of the better of two random candidates.

    A sound policy may well choose what the marginal cost would not, here and there. One whose choices
    are on average worse, by that measure, than the better of two replicas drawn at random has lost its
    way, however finite and unanimous its scores are. Two means are kept, of what a choice costs beyond
    the cheapest candidate, and of what the better of two would; the last `window` decisions weigh most::

        mean <- mean + (value - mean) / window

    Args:
        window: decisions that the means remember, about.
        slack: how much dearer than the better of two a choice may be, in units of J.
    """

    def __init__(self, window: int, slack: float) -> None:
        self._rate = 1.0 / window
        self._slack = slack
        self._weights: Float32 = np.zeros(0, dtype=np.float32)
        self.own = 0.0
        """Mean of what the choices cost beyond the cheapest candidate, in units of J."""
        self.of_two = 0.0
        """The same of the better of two."""
        self.excess = 0.0
        """How much dearer than the better of two the last choice was; NaN where it is not known."""

    def is_costly(self, rows: Float32, choice: int) -> bool:
        """One more choice; whether it is too dear, and most others of late were.

        Args:
            rows: (n, len(REPLICA_FEATURES)), of whom the mask allows.
            choice: the chosen one's place among them.
        """
        cost = rows[:, _MARGINAL_COST]
        ordered = np.sort(cost)
        if len(ordered) != len(self._weights):
            self._weights = better_of_two_weights(len(ordered))
        own = float(cost[choice] - ordered[0])
        of_two = float(ordered @ self._weights - ordered[0])
        self.excess = own - of_two
        if not (math.isfinite(own) and math.isfinite(of_two)):
            self.excess = math.nan
            return False
        self.own += self._rate * (own - self.own)
        self.of_two += self._rate * (of_two - self.of_two)
        return self.excess > self._slack and self.own > self.of_two + self._slack


def better_of_two_weights(n: int) -> Float32:
    """Chance of each of n candidates, cheapest first, to be the better of two drawn at random, (n,)."""
    if n == 1:
        return np.ones(1, dtype=np.float32)
    dearer = np.arange(n - 1, -1, -1)
    weights: Float32 = (dearer / (0.5 * n * (n - 1))).astype(np.float32)
    return weights
