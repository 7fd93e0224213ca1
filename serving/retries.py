"""How many further attempts are affordable: a bucket that every new request fills a little."""

from __future__ import annotations

from typing import Protocol


class BudgetSettings(Protocol):
    """Of a bucket."""

    @property
    def budget_ratio(self) -> float:
        """What each new request adds."""
        ...

    @property
    def budget_burst(self) -> int:
        """What it can hold."""
        ...


class RetryBudget:
    """Keeps retries from multiplying the load of a fleet that is failing.

    It starts full, so that the loss of one replica with many requests in its queue can be made good.
    """

    def __init__(self, settings: BudgetSettings) -> None:
        self.apply(settings)
        self._left = self._most

    def apply(self, settings: BudgetSettings) -> None:
        """These count from now on; what was spent stays spent."""
        self._ratio = settings.budget_ratio
        self._most = float(settings.budget_burst)

    @property
    def left(self) -> float:
        """Retries that may be made now."""
        return self._left

    def request(self) -> None:
        """A new request came in."""
        self._left = min(self._left + self._ratio, self._most)

    def spend(self) -> bool:
        """Take one retry, if there is one."""
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True
