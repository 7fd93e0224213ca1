"""How much of the traffic each group sends."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable

_MOST_GROUPS = 10_000
_ENOUGH = 64.0
"""Requests to have seen before a group is called large."""


class Shares:
    """Counts that fade with a time constant; bounded, the longest silent groups go first."""

    def __init__(self, window_s: float) -> None:
        self._window_s = window_s
        self._counts: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()
        self._all = 0.0
        self._at_s = -math.inf

    def add(self, group: Hashable | None, now_s: float) -> float:
        """A request came; None: of no group. Returns the group's share, 0 while little is known."""
        self._all = 1.0 + self._faded(self._all, now_s - self._at_s)
        self._at_s = now_s
        if group is None:
            return 0.0
        count, at_s = self._counts.get(group, (0.0, now_s))
        count = 1.0 + self._faded(count, now_s - at_s)
        self._counts[group] = count, now_s
        self._counts.move_to_end(group)
        if len(self._counts) > _MOST_GROUPS:
            self._counts.popitem(last=False)
        return count / self._all if self._all >= _ENOUGH else 0.0

    def _faded(self, count: float, since_s: float) -> float:
        return count * math.exp(-max(since_s, 0.0) / self._window_s) if count else 0.0
