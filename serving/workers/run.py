"""`steersman serve --workers N`: the same router in several processes."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Callable

import uvloop

from steersman.serving.admin.listener import operators_socket
from steersman.serving.app import create_app
from steersman.serving.collector import settle
from steersman.serving.config import RouterSettings
from steersman.serving.outcome_log import outcomes_writer, overflows_of, write_leftovers
from steersman.serving.pool import MOST_REPLICAS
from steersman.serving.reload import Reloader, rehearse
from steersman.serving.server import open_socket, serve_forever
from steersman.serving.workers.accepted import Accepted
from steersman.serving.workers.board import Board, Seat
from steersman.serving.workers.orders import Orders
from steersman.serving.workers.pages import DepartedPages, PageRack, WorkerPages
from steersman.serving.workers.supervisor import Supervisor
from steersman.serving.workers.team import Team
from steersman.serving.workers.wires import Wires
from steersman.traces.errors import ConfigError

logger = logging.getLogger("steersman.serving")

SPARE_S = 15.0
"""Beside its lame-duck and drain periods, until a worker that does not end is killed."""


def serve_in_workers(settings: RouterSettings, read: Callable[[], RouterSettings]) -> int:
    """Serve until told to stop; returns the exit status.

    Raises:
        ConfigError: as `create_app` and `open_socket`, before any worker is there.
    """
    rehearse(settings)
    if settings.outcome_log.directory:
        outcomes_writer(settings, None).close()  # whether there can be one
    listener = open_socket(settings)
    operators = operators_socket(settings)
    board = Board(settings.workers + 1, MOST_REPLICAS)
    rack = PageRack(settings.workers + 3)
    pages = DepartedPages(rack)
    wires, orders = Wires(settings.workers + 1), Orders(settings.workers + 1)
    accepted = Accepted(settings.workers + 1)
    serving = NextSettings(settings, read, accepted)
    overflows = overflows_of(settings)

    def work(seat: int, ready: Callable[[], None]) -> int:
        app = create_app(serving.now, Seat(board, seat), overflows)
        parts = app.state.parts
        parts.pages = WorkerPages(rack, seat, parts.metrics)
        reloader = Reloader(parts, read)
        parts.team = Team(wires, orders, accepted, seat, parts, reloader)
        parts.watches += [parts.pages, parts.team, OrphanWatch()]
        settle()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            signal.signal(signal.SIGTERM, lambda *_: None)
            runner.run(
                serve_forever(app, serving.now, listener, reloader, on_ready=ready, operators=operators)
            )
        parts.pages.show()
        return 0

    def gone(seat: int, unasked: bool) -> None:
        wires.taken[seat] = 0
        orders.departed(seat)
        accepted.departed(seat)
        board.clear(seat)
        pages.departed(seat)
        if unasked:
            pages.restarted()

    patience_s = settings.timeouts.lame_duck_s + settings.timeouts.drain_s + SPARE_S
    supervisor = Supervisor(settings.workers, work, gone, serving.read, serving.take_up, patience_s)

    def stop() -> None:
        listener.close()
        if operators is not None:
            operators.close()

    host, port = listener.getsockname()[:2]
    logger.info("%d workers listen on %s port %d", settings.workers, host, port)
    code = supervisor.run(stop)
    write_leftovers(serving.now, overflows)
    return code


class NextSettings:
    """What workers serve by that are started from now on; those that are there read it by themselves.

    Args:
        now: at the start.
        read: reads and checks the file.
        accepted: by those that are there.
    """

    def __init__(
        self, now: RouterSettings, read: Callable[[], RouterSettings], accepted: Accepted
    ) -> None:
        self.now = now
        self._read = read
        self._accepted = accepted

    def read(self) -> None:
        """What the file says, if nothing is wrong with it."""
        with contextlib.suppress(ConfigError):  # they say what is wrong
            wanted = self._read()
            rehearse(wanted)
            self.now = wanted

    def take_up(self) -> None:
        """What the others have taken up."""
        try:
            self.now = self._accepted.newest() or self.now
        except ValueError as error:  # nothing in it may end the supervisor
            logger.error("workers that start from now on have the former configuration: %s", error)


class OrphanWatch:
    """The control loop of a worker that ends it when nobody supervises it any more."""

    name = "watch for the supervisor"

    def __init__(self) -> None:
        self._parent = os.getppid()

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Look once; returns the pause."""
        if os.getppid() != self._parent:
            logger.error("the supervisor is gone; this worker drains")
            os.kill(os.getpid(), signal.SIGTERM)
            return float("inf")
        return 1.0
