"""Where requests wait while every replica of their model is full (SPEC C1).

Without saturation a request goes straight through. Otherwise it joins the queue of its model
(`agents/queueing`), and its task sleeps until it is its turn: then it looks for itself, once, and either
goes to a replica or sleeps on. One task at a time looks, so that each sees what the one before it has
dispatched. Looks follow what may have made room: an answer that ended, a first token, a scrape, a
replica that came back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from steersman.agents.queueing.lane import Held
from steersman.agents.queueing.queue import RequestQueue, ShedReason, Turn
from steersman.agents.queueing.saturation import has_room, late_after_s, work_s
from steersman.agents.queueing.settings import LEVELS, QueueSettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.exchange import Exchange
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.router import Route, Router, Saturated
from steersman.serving.surface import Work
from steersman.traces.schema import Observation, Status

REST_S = 0.01
"""After a look that found no room, whatever happens: so that looks cost a bounded share of the CPU."""
LOOK_S = 0.1
"""The longest time between two looks: lateness and ageing are nobody's event."""
MOST_RETRY_AFTER_S = 60.0

_CODES = {ShedReason.FULL: Code.QUEUE_FULL, ShedReason.LATE: Code.TOO_LATE}


@dataclass(eq=False, slots=True)
class _Waiter:
    """The task of a held request."""

    exchange: Exchange
    woken: asyncio.Future[None] = field(init=False)
    turn: Turn | None = None
    refused: ShedReason | None = None

    def __post_init__(self) -> None:
        self.sleep()

    def sleep(self) -> None:
        self.turn = None
        self.woken = asyncio.get_running_loop().create_future()

    def wake(self) -> None:
        if not self.woken.done():
            self.woken.set_result(None)


class _Line:
    """The queue of one model, and whose task is looking."""

    def __init__(
        self, model: str, settings: QueueSettings, metrics: RouterMetrics, clock: Clock
    ) -> None:
        self.model = model
        self.queue = RequestQueue(settings)
        self.looking: _Waiter | None = None
        self._metrics = metrics
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.Handle | None = None
        self._timer_s = 0.0  # uvloop's handles of what is due at once do not tell when
        self._rest_until_s = 0.0

    def look_soon(self, within_s: float = 0.0) -> None:
        """Somebody may have room: look by then, but not while resting."""
        at_s = max(self._loop.time() + within_s, self._rest_until_s)
        if self._timer is None or at_s < self._timer_s:
            self.close()
            self._timer_s = at_s
            self._timer = self._loop.call_at(at_s, self._look)

    def rest(self) -> None:
        """A look was in vain."""
        self._rest_until_s = self._loop.time() + REST_S
        self.look_soon(LOOK_S)

    def refuse(self, gone: Held, reason: ShedReason) -> None:
        """Tell one that has been taken out."""
        waiter: _Waiter = gone.tag
        waiter.refused = reason
        waiter.wake()
        self._metrics.queue_shed.labels(f"P{gone.priority}", reason.value).inc()

    def tell_depth(self) -> None:
        """Show how many wait."""
        for level, depth in enumerate(self.queue.depth):
            self._metrics.queue_depth.labels(self.model, f"P{level}").set(depth)

    def close(self) -> None:
        """Nobody is to look any more."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Wake whose turn it is, unless somebody is awake."""
        self._timer = None
        now_s = self._clock()
        for late in self.queue.too_late(now_s):
            self.refuse(late, ShedReason.LATE)
        if self.looking is not None:
            return
        turn = self.queue.first(now_s)
        if turn is not None:
            self.looking = turn.held.tag
            self.looking.turn = turn
            self.looking.wake()


class WaitingRoom:
    """Lets requests go to a replica at once, or when it is their turn.

    Args:
        settings: of the queue.
        router: chooses the replica.
        metrics: told who waits, for how long, and who is turned away.
        clock: the router's.
    """

    def __init__(
        self, settings: QueueSettings, router: Router, metrics: RouterMetrics, clock: Clock
    ) -> None:
        self._settings = settings
        self._router = router
        self._metrics = metrics
        self._clock = clock
        self._lines: dict[str, _Line] = {}

    def apply(self, settings: QueueSettings) -> None:
        """From now on these count; where requests wait, once that queue is empty."""
        self._settings = settings

    @property
    def waiting(self) -> int:
        """Requests that wait now."""
        return sum(len(line.queue) for line in self._lines.values())

    @property
    def waiting_bytes(self) -> int:
        """Bytes of their bodies."""
        return sum(line.queue.size_bytes for line in self._lines.values())

    def eased(self) -> None:
        """Some replica may have room that had none."""
        for line in self._lines.values():
            line.look_soon()

    async def choose(self, exchange: Exchange) -> Route | None:
        """A replica for this request, once one has room; None if there is none at all.

        The caller dispatches before it waits for anything else. A request that is tried again has had
        its turn and goes at once.

        Raises:
            ApiError: 503, it was turned away.
        """
        prepared = exchange.prepared
        is_queued = self._settings.enabled and exchange.intake.api.work is not Work.TEXT
        if not is_queued or exchange.retries:
            return self._router.choose(prepared)
        line = self._lines.get(prepared.pool.model)
        try:
            return self._router.choose(prepared, _nobody if line else self._room(_level(exchange)))
        except Saturated as full:
            return await self._wait(exchange, full.seen)

    async def _wait(self, exchange: Exchange, seen: Observation) -> Route | None:
        model = exchange.prepared.pool.model
        line = self._lines.get(model)
        if line is None:
            line = self._lines[model] = _Line(model, self._settings, self._metrics, self._clock)
        waiter = _Waiter(exchange)
        arrival_s = exchange.intake.arrival_s
        held = Held(
            priority=_level(exchange),
            arrival_s=arrival_s,
            work_s=work_s(seen),
            late_at_s=arrival_s + late_after_s(seen),
            size_bytes=len(exchange.intake.body),
            tag=waiter,
        )
        spare_bytes = self._settings.max_bytes - self.waiting_bytes
        for gone in line.queue.offer(held, spare_bytes=spare_bytes):
            line.refuse(gone, ShedReason.FULL)
        line.tell_depth()
        line.look_soon()
        try:
            return await self._turns(line, held, waiter)
        finally:
            line.queue.remove(held)
            line.tell_depth()
            if line.looking is waiter:
                line.looking = None
            if len(line.queue):
                line.look_soon()
            else:
                line.close()
                if self._lines.get(model) is line:
                    del self._lines[model]

    async def _turns(self, line: _Line, held: Held, waiter: _Waiter) -> Route | None:
        """Sleep and look, until there is room or it is turned away."""
        while True:
            await waiter.woken
            if waiter.refused is not None:
                raise self._refusal(line, waiter)
            assert waiter.turn is not None
            try:
                route = self._router.choose(waiter.exchange.prepared, self._room(waiter.turn.level))
            except Saturated:
                waiter.sleep()
                line.looking = None
                line.rest()
                continue
            now_s = self._clock()
            line.queue.take(held, now_s)
            level = f"P{held.priority}"
            waiter.exchange.held_s = now_s - held.arrival_s
            self._metrics.queue_wait.labels(line.model, level).observe(waiter.exchange.held_s)
            return route

    def _room(self, level: int) -> Callable[[Observation], NDArray[np.bool_]]:
        return partial(has_room, settings=self._settings, level=level)

    def _refusal(self, line: _Line, waiter: _Waiter) -> ApiError:
        assert waiter.refused is not None
        code = _CODES[waiter.refused]
        waiter.exchange.status = Status.REJECTED
        message = (
            f"all replicas of '{line.model}' are full, and so is the queue; try again later"
            if code is Code.QUEUE_FULL
            else f"all replicas of '{line.model}' are full, and the objective cannot be met any more"
        )
        retry_after_s = min(line.queue.drain_s(), MOST_RETRY_AFTER_S)
        return ApiError(503, code, message, retry_after_s=retry_after_s)


def _level(exchange: Exchange) -> int:
    return min(int(exchange.prepared.request.priority), LEVELS - 1)


def _nobody(seen: Observation) -> NDArray[np.bool_]:
    """Others wait already."""
    return np.zeros_like(seen.mask)
