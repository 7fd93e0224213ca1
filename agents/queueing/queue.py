"""The queue in the router (SPEC C1): who goes next, who is late, who has to go.

Levels P0 to P3 are strict: as long as anybody waits at one, nobody below it goes. Within a level the
least `arrival + stretch * work` goes first: shortest predicted job first, but for a job that has been
overtaken for long enough, since arrivals of the future cannot have a small key.

With `late: yield`, what can no longer meet its TTFT objective makes way for those of its level that
still can: in overload some miss it by far rather than all by a little.

Ageing: to what has waited past its level's threshold goes one turn in `1 / aged_share`, to each level
in its turn and the longest aged first within one. So nothing starves: where `n` of a level wait at `c`
turns a second, each has gone `LEVELS * n / (aged_share * c)` seconds after it aged at the latest,
whatever the other levels do. And the others lose no more than that share, however much there is that
would rise.

When there is no room, the lowest class goes, but for the `kept_share` that each may fill: those that
higher classes drove out before they aged would starve as well.

The same object works in the simulator and in the router. It does no I/O and is told the time.
"""

from __future__ import annotations

import heapq
from collections import deque
from enum import StrEnum
from typing import NamedTuple

from steersman.agents.queueing.lane import Held, Lane
from steersman.agents.queueing.settings import LEVELS, QueueSettings

_PACE_SMOOTHING = 0.05


class ShedReason(StrEnum):
    """Why a request was not held any longer."""

    FULL = "queue_full"
    """No room, and nobody of a lower class to make some."""
    LATE = "too_late"
    """It could no longer meet its TTFT objective."""


class Turn(NamedTuple):
    """Who goes next."""

    held: Held
    level: int
    """As what: by its age it may have the rights of a higher class."""


class RequestQueue:
    """Requests of one pool that wait for a replica.

    Args:
        settings: see there.
    """

    def __init__(self, settings: QueueSettings) -> None:
        self._settings = settings
        # In the order in which they are served: of each level those in time, then the late ones.
        self._lanes = [Lane() for _ in range(2 * LEVELS)]
        self._ageing: list[deque[Held]] = [deque() for _ in range(LEVELS)]
        self._aged: list[deque[Held]] = [deque() for _ in range(LEVELS)]
        self._aged_turn = LEVELS - 1
        self._kept = int(settings.kept_share * settings.max_requests)
        self._lateness: list[tuple[float, int, Held]] = []
        self._count = 0
        self._turn = 0
        self._credit = 0.0
        self._depth = [0] * LEVELS
        self._taken_s: float | None = None
        self._interval_s = 0.0
        self.size_bytes = 0

    def __len__(self) -> int:
        return self._count

    @property
    def depth(self) -> tuple[int, ...]:
        """Waiting requests of each class."""
        return tuple(self._depth)

    def drain_s(self) -> float:
        """How long it takes until all who wait now have gone, at the pace of late."""
        return self._count * self._interval_s

    def offer(self, held: Held, *, spare_bytes: float = float("inf")) -> list[Held]:
        """Let a request wait; returns those that must go for it, maybe itself.

        Args:
            held: has not waited yet; arrivals come in order of time.
            spare_bytes: room for bodies, this one not counted.
        """
        self._turn += 1
        held.turn = self._turn
        held.key = held.arrival_s + self._settings.stretch * held.work_s
        self._count += 1
        self._depth[held.priority] += 1
        self.size_bytes += held.size_bytes
        self._lanes[2 * held.priority].add(held)
        self._ageing[held.priority].append(held)
        if self._settings.late != "serve":
            heapq.heappush(self._lateness, (held.late_at_s, held.turn, held))
        shed: list[Held] = []
        spare_bytes -= held.size_bytes
        while self._count > self._settings.max_requests or (spare_bytes < 0.0 and self._count > 0):
            worst = self._worst()
            self.remove(worst)
            spare_bytes += worst.size_bytes
            shed.append(worst)
        return shed

    def first(self, now_s: float) -> Turn | None:
        """Whose turn it is; it goes on waiting."""
        self._age(now_s)
        self._expire(now_s)
        aged = self._first_aged()
        if aged is not None:
            return Turn(aged, 0)
        for lane in self._lanes:
            if len(lane):
                held = lane.first()
                return Turn(held, held.priority)
        return None

    def remove(self, held: Held) -> None:
        """It leaves, for whatever reason; nothing happens if it had left."""
        if held.lane is None:
            return
        held.lane.remove(held)
        self._count -= 1
        self._depth[held.priority] -= 1
        self.size_bytes -= held.size_bytes
        if self._count == 0:
            self._lateness.clear()

    def take(self, held: Held, now_s: float) -> None:
        """It goes to a replica: it had the turn."""
        if held is self._first_aged():
            self._credit -= 1.0
            self._aged_turn = (held.priority - 1) % LEVELS
        self.remove(held)
        for waiting in self._aged:
            self._drop_gone(waiting)
        if any(self._aged):
            self._credit = min(self._credit + self._settings.aged_share, 2.0)
        if self._taken_s is not None:
            self._interval_s += _PACE_SMOOTHING * (now_s - self._taken_s - self._interval_s)
        self._taken_s = now_s if self._count else None

    def too_late(self, now_s: float) -> list[Held]:
        """Take out those that are to be refused for being late."""
        if self._settings.late != "refuse":
            return []
        self._expire(now_s)
        late = []
        for lane in self._lanes[1::2]:
            while len(lane):
                late.append(lane.first())
                self.remove(late[-1])
        return late

    def _age(self, now_s: float) -> None:
        """Find those that have waited past their level's threshold."""
        for level, waiting in enumerate(self._ageing):
            self._drop_gone(waiting)
            while waiting and now_s - waiting[0].arrival_s >= self._settings.ageing_s[level]:
                self._aged[level].append(waiting.popleft())
                self._drop_gone(waiting)
            self._drop_gone(self._aged[level])

    def _first_aged(self) -> Held | None:
        """Who goes by its age alone, if such a turn is due: levels take turns, the lowest first."""
        if self._credit < 1.0:
            return None
        levels = ((self._aged_turn - i) % LEVELS for i in range(LEVELS))
        return next((self._aged[level][0] for level in levels if self._aged[level]), None)

    def _worst(self) -> Held:
        """Who must go when there is no room."""
        lanes = [(i // 2, lane) for i, lane in enumerate(self._lanes) if len(lane)]
        beyond = [lane for level, lane in lanes if self._depth[level] > self._kept]
        return (beyond[-1] if beyond else lanes[-1][1]).last()

    def _expire(self, now_s: float) -> None:
        """Move those that have become late behind the others of their level."""
        while self._lateness and self._lateness[0][0] <= now_s:
            held = heapq.heappop(self._lateness)[2]
            if held.lane is not None:
                held.lane.remove(held)
                self._lanes[2 * held.priority + 1].add(held)

    @staticmethod
    def _drop_gone(waiting: deque[Held]) -> None:
        while waiting and waiting[0].lane is None:
            waiting.popleft()
