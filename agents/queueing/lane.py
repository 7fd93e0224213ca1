"""Requests of one level in order, from both ends."""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from typing import Any

_SLACK = 64
"""Dead entries a heap may have before they outnumber the living and it is built anew."""


@dataclass(eq=False, slots=True)
class Held:
    """A request that waits in the router."""

    priority: int
    arrival_s: float
    work_s: float
    """Engine time it is predicted to take; see `work_s`."""
    late_at_s: float
    """From when on it cannot meet its TTFT objective."""
    size_bytes: int = 0
    tag: Any = None
    """The owner's."""
    lane: Lane | None = field(default=None, init=False)
    """None: it does not wait (any more)."""
    key: float = field(default=0.0, init=False)
    """The least goes first within its level."""
    turn: int = field(default=0, init=False)
    """In the order of arrival."""


Entry = tuple[float, int, Held]


class Lane:
    """Held requests by `key`, the earlier `turn` first among equals.

    Taking from the middle is lazy: entries of what has left are dropped when they come up.
    """

    def __init__(self) -> None:
        self._first: list[Entry] = []
        self._last: list[Entry] = []
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def add(self, held: Held) -> None:
        """It waits here now."""
        held.lane = self
        self._count += 1
        heapq.heappush(self._first, (held.key, held.turn, held))
        heapq.heappush(self._last, (-held.key, -held.turn, held))
        if len(self._first) > 2 * self._count + _SLACK or len(self._last) > 2 * self._count + _SLACK:
            self._rebuild()

    def remove(self, held: Held) -> None:
        """It waits here no more."""
        held.lane = None
        self._count -= 1

    def first(self) -> Held:
        """With the least key."""
        return self._top(self._first)

    def last(self) -> Held:
        """With the greatest key."""
        return self._top(self._last)

    def _top(self, heap: list[Entry]) -> Held:
        while heap[0][2].lane is not self:
            heapq.heappop(heap)
        return heap[0][2]

    def _rebuild(self) -> None:
        waiting = {id(entry[2]): entry[2] for entry in self._first if entry[2].lane is self}.values()
        self._first = [(held.key, held.turn, held) for held in waiting]
        self._last = [(-held.key, -held.turn, held) for held in waiting]
        heapq.heapify(self._first)
        heapq.heapify(self._last)
