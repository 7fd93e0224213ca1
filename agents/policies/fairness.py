"""Tokens that each user has had recently, in bounded memory."""

from __future__ import annotations

from collections import deque

SLICES = 30
"""A window is forgotten in so many steps."""


class RecentTokens:
    """Sliding sums per user.

    Args:
        window_s: length of the window; it slides in steps of a thirtieth.
    """

    def __init__(self, window_s: float) -> None:
        self._slice_s = window_s / SLICES
        self._slices: deque[tuple[int, dict[int, float]]] = deque()
        self._totals: dict[int, float] = {}

    def add(self, user: int, tokens: float, now_s: float) -> None:
        """A request of so many tokens."""
        number = self._forget(now_s)
        if not self._slices or self._slices[-1][0] != number:
            self._slices.append((number, {}))
        current = self._slices[-1][1]
        current[user] = current.get(user, 0.0) + tokens
        self._totals[user] = self._totals.get(user, 0.0) + tokens

    def of(self, user: int, now_s: float) -> float:
        """Tokens of one user within the window."""
        self._forget(now_s)
        return self._totals.get(user, 0.0)

    def bounds(self, now_s: float) -> tuple[float, float]:
        """Least and most tokens of any user within the window; 0 and 0 without any."""
        self._forget(now_s)
        values = self._totals.values()
        return (min(values), max(values)) if values else (0.0, 0.0)

    def _forget(self, now_s: float) -> int:
        number = int(now_s // self._slice_s)
        while self._slices and self._slices[0][0] <= number - SLICES:
            for user, tokens in self._slices.popleft()[1].items():
                left = self._totals[user] - tokens
                if left > 1e-6:
                    self._totals[user] = left
                else:
                    del self._totals[user]
        return number
