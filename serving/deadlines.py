"""One timer for the deadlines of all requests.

Nearly all of them are moved on or called off before they come, while a timer of its own, set and
cancelled, costs a request what passing on three tokens does.
"""

from __future__ import annotations

import asyncio
import math
from typing import Protocol

LOOK_S = 5.0
"""Between two looks, at most; a look takes a fraction of a microsecond for each that is watched."""
REST_S = 0.1
"""Between two looks, at least: however many come late, one after the other."""


class Dated(Protocol):
    """What has a deadline."""

    def due_s(self) -> float:
        """When, by the loop's clock; it may have been moved on since it was told."""
        ...

    def late(self) -> None:
        """It has passed, and is not watched any more."""
        ...


class Deadlines:
    """Of one event loop."""

    def __init__(self) -> None:
        self._dated: set[Dated] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at_s = math.inf

    def __len__(self) -> int:
        return len(self._dated)

    def watch(self, dated: Dated, due_s: float) -> None:
        """From now on, until it is late or forgotten; `due_s` is what it says now."""
        self._dated.add(dated)
        if due_s < self._looks_at_s:
            self._look_at(due_s)

    def forget(self, dated: Dated) -> None:
        """It has no deadline any more, or had none."""
        self._dated.discard(dated)

    def _look_at(self, at_s: float) -> None:
        loop = asyncio.get_running_loop()
        if self._timer is not None:
            self._timer.cancel()
        self._looks_at_s = min(at_s, loop.time() + LOOK_S)
        self._timer = loop.call_at(self._looks_at_s, self._look)

    def _look(self) -> None:
        self._timer, self._looks_at_s = None, math.inf
        now_s = asyncio.get_running_loop().time()
        next_s, late = math.inf, []
        for dated in self._dated:
            due_s = dated.due_s()
            next_s = min(next_s, due_s)
            if due_s <= now_s:
                late.append(dated)
        try:
            for dated in late:
                self._dated.discard(dated)
                dated.late()
        finally:  # whatever one of them does, the others are looked at again
            if self._dated:
                self._look_at(max(next_s, now_s + REST_S))
