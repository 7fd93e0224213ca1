"""Whether a policy's choices cost more than those of anybody who looks at two replicas."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import REPLICA_INDEX

Float32 = NDArray[np.float32]

LEAST = 0.15
"""Share of the window's weight that it takes to judge: a sixth of its decisions, of weight 1."""
CREDIBLE = 20.0
"""Units of J that the cheapest candidate may cost for more to be allowed than the slack. Of a request's
own cost 42 are the bound; where even the cheapest choice costs others half of that, a backlog grows, and
there marginal cost has been the better policy (docs/policies.md)."""
_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]


class RegretWatch:
    """Compares the marginal cost of choices with that of the better of two random candidates.

    A sound policy may well choose what the marginal cost would not, here and there. One whose choices
    are on average worse, by that measure, than the better of two replicas drawn at random has lost its
    way, however finite and unanimous its scores are. Two means are kept, of what a choice costs beyond
    the cheapest candidate, and of what it may cost::

        may cost = better of two + slack + (factor - 1) cheapest        the last, up to CREDIBLE

    Near saturation every choice costs others their objectives, several units of J and known to no better
    than a share of itself, so that a fixed slack alone finds sound choices dear. The last `window`
    decisions weigh most, each by its request's weight in J: batch requests are sent where they cost
    most, so that others need not wait::

        sum <- sum + weight (value - sum) / window        mean = sum / (the same sum of ones)

    With less than `LEAST` of those ones the means say nothing.

    Args:
        window: decisions that the means remember, about.
        slack: in units of J.
        factor: at least 1.
    """

    def __init__(self, window: int, slack: float, factor: float) -> None:
        self._rate = 1.0 / window
        self._slack = slack
        self._share = factor - 1.0
        self._weights: Float32 = np.zeros(0, dtype=np.float32)
        self._excess = 0.0
        self._last: tuple[Float32, float, float] | None = None
        """Costs of the candidates, `beyond_cheapest` and the request's weight, as long as the last
        choice is not counted."""
        self.forget()
        self.beyond_cheapest = 0.0
        """What the last choice cost beyond the cheapest candidate; NaN where a cost is none."""
        self._cheapest = 0.0

    def forget(self) -> None:
        """Judge anew."""
        self._last = None
        self._own = self._allowed = self._ones = 0.0

    @property
    def excess(self) -> float:
        """How much dearer than the better of two the last choice was; NaN where it is not known."""
        self.settle()
        return self._excess

    @property
    def is_lost(self) -> bool:
        """Whether choices have been too dear on average."""
        self.settle()
        return self._ones >= LEAST and self._own > self._allowed

    @property
    def is_near_cheapest(self) -> bool:
        """Whether the last choice cost at most `factor` times what the cheapest candidate does."""
        return self.beyond_cheapest <= self._share * self._cheapest

    def is_costly(self, rows: Float32, choice: int, weight: float) -> bool:
        """One more choice; whether it is too dear, and most others of late were.

        Args:
            rows: (n, len(REPLICA_FEATURES)), of whom the mask allows.
            choice: the chosen one's place among them.
            weight: of the request in J.
        """
        self.settle()
        cost = rows[:, _MARGINAL_COST].copy()
        self._cheapest = float(cost[cost.argmin()])
        own = self.beyond_cheapest = float(cost[choice]) - self._cheapest
        self._last = cost, own, weight
        # Nearly always: who costs no more than the cheapest and the limit does not exceed the better of
        # two by it. So what that would have cost is left for later: at the latest, for the next choice.
        limit = self._limit(self._cheapest)
        if not own > limit:
            return False
        return self.excess > limit and self.is_lost

    def settle(self) -> None:
        """Count the last choice, if it has not been."""
        if self._last is None:
            return
        (cost, own, weight), self._last = self._last, None
        cost.sort()
        if len(cost) != len(self._weights):
            self._weights = better_of_two_weights(len(cost))
        # The cheapest is a bound that rounding may miss.
        of_two = max(float(cost @ self._weights - cost[0]), 0.0)
        self._excess = own - of_two
        if not (math.isfinite(own) and math.isfinite(of_two)):
            self._excess = math.nan
            return
        rate = self._rate * weight
        self._own += rate * (own - self._own)
        self._allowed += rate * (of_two + self._limit(float(cost[0])) - self._allowed)
        self._ones += rate * (1.0 - self._ones)

    def _limit(self, cheapest: float) -> float:
        """How much dearer than the better of two a choice may be."""
        return self._slack + (self._share * cheapest if cheapest <= CREDIBLE else 0.0)


def better_of_two_weights(n: int) -> Float32:
    """Chance of each of n candidates, cheapest first, to be the better of two drawn at random, (n,)."""
    if n == 1:
        return np.ones(1, dtype=np.float32)
    dearer = np.arange(n - 1, -1, -1)
    weights: Float32 = (dearer / (0.5 * n * (n - 1))).astype(np.float32)
    return weights
