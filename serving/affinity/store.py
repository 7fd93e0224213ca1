"""Where homes are remembered: in memory, or on the server that routers share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol, TypeVar

from steersman.agents.affinity import Homes
from steersman.serving.loops import Clock
from steersman.serving.shared.server import SharedDown, SharedServer

T = TypeVar("T")

FRESH_S = 1.0
"""For so long a router believes its own memory before it asks what the others know."""


class HomeStore(Protocol):
    """Group names to replica ids, each for a time that begins anew with every request."""

    async def find(self, group: str) -> str | None:
        """The home of a group."""
        ...

    def bind(self, group: str, replica: str) -> None:
        """The group is at home there. Returns at once."""
        ...

    def __len__(self) -> int:
        """Groups in this router's memory."""
        ...


class MemoryHomes:
    """A `HomeStore` of one router."""

    def __init__(self, timeout_s: float, most: int, clock: Clock) -> None:
        self._homes: Homes[str] = Homes(timeout_s, most)
        self._clock = clock

    async def find(self, group: str) -> str | None:
        """The home of a group."""
        return self._homes.find(group, self._clock())

    def bind(self, group: str, replica: str) -> None:
        """The group is at home there."""
        self._homes.bind(group, replica, self._clock())

    def __len__(self) -> int:
        return len(self._homes)


class SharedHomes:
    """A `HomeStore` of several routers. What was heard within `FRESH_S` is not asked again, and while
    the server does not answer the router goes on from its own memory."""

    def __init__(self, server: SharedServer, timeout_s: float, most: int, clock: Clock) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._most = most
        self._clock = clock
        self._own: Homes[str] = Homes(timeout_s, most)
        self._heard: OrderedDict[str, float] = OrderedDict()
        self._told: OrderedDict[str, tuple[str, float]] = OrderedDict()

    async def find(self, group: str) -> str | None:
        """The home of a group, as all routers know it."""
        now_s = self._clock()
        known = self._own.find(group, now_s)
        if known is not None and now_s - self._heard.get(group, -FRESH_S) < FRESH_S:
            return known
        try:
            answer = await self._server.ask("GET", self._server.name("home", group))
        except SharedDown:
            return known
        home = answer.decode("ascii", "replace") if isinstance(answer, bytes) else None
        self._note(self._heard, group, now_s)
        if home is None:
            self._own.forget(group)
        else:
            self._own.bind(group, home, now_s)
        return home

    def bind(self, group: str, replica: str) -> None:
        """The group is at home there. The server is told of news, and now and then of what it knows, so
        that it does not forget."""
        now_s = self._clock()
        self._own.bind(group, replica, now_s)
        self._note(self._heard, group, now_s)
        told, at_s = self._told.get(group, ("", 0.0))
        if told == replica and now_s - at_s < self._timeout_s / 4.0:
            return
        self._note(self._told, group, (replica, now_s))
        name, lasts_ms = self._server.name("home", group), max(int(1000.0 * self._timeout_s), 1)
        self._server.tell("SET", name, replica, "PX", lasts_ms)

    def __len__(self) -> int:
        return len(self._own)

    def _note(self, memory: OrderedDict[str, T], group: str, value: T) -> None:
        memory[group] = value
        memory.move_to_end(group)
        if len(memory) > self._most:
            memory.popitem(last=False)
