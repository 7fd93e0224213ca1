"""What operators have told the workers: which replicas drain. In memory that all of them see.

Whoever is told writes it where nobody else writes, with the time on the machine's monotonic clock; of
what several have written about a replica the newest counts. So there is no lock, a worker that dies in
the middle of it takes nothing along, and one that starts later finds all of it.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import NamedTuple

import orjson

from steersman.serving.workers.pages import PageRack


class Order(NamedTuple):
    """About one replica."""

    drain: bool
    at_s: float
    """When it was given; on the monotonic clock, which all processes of a machine share."""


class Orders:
    """The orders of all seats.

    Args:
        seats: how many workers may live at the same time.
        clock: of the machine.
    """

    def __init__(self, seats: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._rack = PageRack(seats + 1)
        self._kept = seats
        self._clock = clock

    def give(self, seat: int, replica: str, *, drain: bool) -> None:
        """The worker in this seat was told."""
        told = self._read(seat)
        told[replica] = Order(drain, self._clock())
        self._write(seat, told)

    def all(self) -> dict[str, Order]:
        """The newest about each replica."""
        newest: dict[str, Order] = {}
        for slot in range(self._rack.slots):
            for replica, order in self._read(slot).items():
                if replica not in newest or newest[replica].at_s < order.at_s:
                    newest[replica] = order
        return newest

    def departed(self, seat: int) -> None:
        """For the supervisor: whoever sat there is gone, and what it was told stays."""
        self._write(self._kept, self.all())
        self._rack.clear(seat)

    def _read(self, slot: int) -> dict[str, Order]:
        page = self._rack.get(slot)
        return {replica: Order(*order) for replica, order in orjson.loads(page or b"{}").items()}

    def _write(self, slot: int, orders: dict[str, Order]) -> None:
        self._rack.put(slot, orjson.dumps({name: tuple(order) for name, order in orders.items()}))
