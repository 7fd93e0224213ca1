"""What operators ask of one worker, and all of them do (SPEC L2)."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any, NamedTuple

from steersman.serving.parts import Parts
from steersman.serving.reload import Reloader
from steersman.serving.workers.accepted import Accepted
from steersman.serving.workers.orders import Orders
from steersman.serving.workers.wires import Colleagues, Wires

INTERVAL_S = 1.0
"""Between two looks at the orders, for what no message said."""
SOON_S = 2.0
"""Patience with a colleague that has little to do."""
MOST_PROBLEM = 4000
"""Characters of what is wrong with a configuration."""
RELOAD_S = 30.0
"""With one that reads a configuration and tries it."""


class Told(NamedTuple):
    """How many workers have done what they were told."""

    did: int
    of: int


class Team:
    """One worker's part of it, and the control loop that follows orders given elsewhere.

    Args:
        wires: to the others.
        orders: of all.
        accepted: where the supervisor finds what was taken up.
        seat: this worker's.
        parts: its router.
        reloader: of its configuration.
        tell_supervisor: workers that start from now on are to have the newest that was taken up.
    """

    name = "orders"

    def __init__(
        self,
        wires: Wires,
        orders: Orders,
        accepted: Accepted,
        seat: int,
        parts: Parts,
        reloader: Reloader,
        tell_supervisor: Callable[[], None] | None = None,
    ) -> None:
        self._orders = orders
        self._accepted = accepted
        self._seat = seat
        self._parts = parts
        self._reloader = reloader
        self._supervisor = os.getppid()
        self._tell_supervisor = tell_supervisor or self._signal_supervisor
        self._followed: dict[str, float] = {}
        """When the order was given that was followed last, by replica."""
        handlers = {"follow": self._follow, "reload": self._reload, "flush": self._flush}
        self._colleagues = Colleagues(wires, seat, handlers)
        self._listens = False

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Look once; returns the pause."""
        if not self._listens:
            self._listens = True
            self._colleagues.listen()
        self._look()
        return INTERVAL_S

    def close(self) -> None:
        """It is no longer asked."""
        if self._listens:
            self._listens = False
            self._colleagues.close()

    async def hold(self, replica: str, *, hold: bool) -> Told | None:
        """Every worker drains a replica, or gives it requests again; None if none of them knows it."""
        if not any(other.id == replica for other in self._parts.fleet.replicas):
            return None
        self._orders.give(self._seat, replica, drain=hold)
        answers = await self._colleagues.ask("follow", SOON_S)
        return Told(sum(answer is not None for answer in answers), len(answers))

    async def reload(self) -> tuple[dict[str, Any], Told]:
        """Every worker reads the configuration again; what came of it here, or where it was refused."""
        answers = await self._colleagues.ask("reload", RELOAD_S)
        done = [answer for answer in answers if answer is not None]
        if any(answer["ok"] for answer in done):
            self._tell_supervisor()
        first = next((answer for answer in done if not answer["ok"]), done[0])
        return first, Told(sum(answer["ok"] for answer in done), len(answers))

    async def flush(self) -> None:
        """Every worker writes out what its log holds."""
        await self._colleagues.ask("flush", SOON_S)

    def _signal_supervisor(self) -> None:
        if os.getppid() == self._supervisor:  # or it is gone, and its heir is somebody else
            os.kill(self._supervisor, signal.SIGUSR1)

    async def _follow(self) -> dict[str, Any]:
        self._look()
        return {}

    async def _reload(self) -> dict[str, Any]:
        result = await self._reloader.reload()
        if result.ok and self._reloader.accepted is not None:
            self._accepted.give(self._seat, self._reloader.accepted)
        return asdict(replace(result, problem=result.problem[:MOST_PROBLEM]))

    async def _flush(self) -> dict[str, Any]:
        if self._parts.log is not None:
            await asyncio.to_thread(self._parts.log.flush)
        return {}

    def _look(self) -> None:
        """Follow what is new. An order about a replica that is not known here yet waits for it."""
        membership = self._parts.membership
        for replica, order in self._orders.all().items():
            followed_s = self._followed.get(replica)
            if followed_s is not None and followed_s >= order.at_s:
                continue
            is_undone = followed_s is None and not order.drain  # before this worker was there
            if is_undone or membership.hold(replica, hold=order.drain):
                self._followed[replica] = order.at_s
