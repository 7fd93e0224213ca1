"""A second attempt beside one that is late: whoever answers first is passed on (SPEC B9).

A stream that has no first byte by the predicted p99 of its TTFT is sent to another replica as well, if
the budget allows it, one has room, and the answer may be expected there in less time than has passed
already. The one that loses is cancelled at once, and both are in the account of their replicas as long
as they run.

The predictor gives p50 and p90, and TTFT is nearly log-normal, so (the quantiles of the normal
distribution being 1.2816 and 2.3263)::

    p99 = p50 * (p90 / p50) ** (2.3263 / 1.2816)

Only streams are hedged: without streaming the first byte is the whole answer, and all of it would be
made twice. Nor is what an engine keeps (`/v1/responses`), nor what only one replica can answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

from steersman.agents.queueing.saturation import has_room
from steersman.agents.queueing.settings import LEVELS
from steersman.serving.attempt import Attempt
from steersman.serving.blame import Blame
from steersman.serving.config import HedgingSettings, RouterSettings
from steersman.serving.exchange import GIVEN_UP, OVERTAKEN, Exchange
from steersman.serving.interrupt import Interrupt, Reason
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet
from steersman.serving.relay import TryElsewhere, broken, unreachable
from steersman.serving.retries import RetryBudget
from steersman.serving.router import Route, Router, Saturated
from steersman.serving.surface import Work
from steersman.serving.upstream import FAILURES
from steersman.serving.wire.errors import ConnectionClosed
from steersman.serving.wire.response import Response

P99_POWER = 2.3263 / 1.2816

Open = Callable[[Exchange, Route], Awaitable[Response]]
"""Sends a request to a replica; returns once the answer's headers are here, or raises TryElsewhere."""


def p99_s(p50_s: float, p90_s: float) -> float:
    """Of a log-normal time."""
    return float(p50_s * (p90_s / p50_s) ** P99_POWER)


class Hedging:
    """One for the whole router; off unless the settings say otherwise."""

    def __init__(
        self,
        settings: RouterSettings,
        router: Router,
        fleet: Fleet,
        blame: Blame,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._settings: HedgingSettings = settings.hedging
        self._queue = settings.queue
        self._router = router
        self._fleet = fleet
        self._blame = blame
        self._metrics = metrics
        self._clock = clock
        self._budget = RetryBudget(settings.hedging)

    def apply(self, settings: RouterSettings) -> None:
        """From now on these count."""
        self._settings, self._queue = settings.hedging, settings.queue
        self._budget.apply(settings.hedging)

    def request(self) -> None:
        """A new request came in."""
        self._budget.request()

    def may(self, exchange: Exchange) -> bool:
        """Whether a request is one of those that are hedged."""
        if not self._settings.enabled:
            return False
        prepared, api = exchange.prepared, exchange.intake.api
        pinned = prepared.group is not None and prepared.group.pinned
        return prepared.request.stream and api.work is Work.GENERATE and not api.stored and not pinned

    async def first_to_answer(self, exchange: Exchange, first: Attempt, open_: Open) -> Attempt:
        """Of one attempt or two, the one whose answer begins first; the other one is over.

        Raises:
            TryElsewhere: none did; `exchange.route` is that of the last to fail.
        """
        running = {asyncio.create_task(_begin(exchange, first, open_)): first}
        second: Attempt | None = None
        won: Attempt | None = None
        try:
            due_s = max(p99_s(*first.route.predicted[:2].tolist()), self._settings.least_wait_s)
            await asyncio.wait(running, timeout=due_s)
            if not any(task.done() for task in running):
                second = self._second(exchange, due_s)
            if second is not None:
                running[asyncio.create_task(_begin(exchange, second, open_))] = second
            won = await self._race(exchange, running)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            for loser in running.values():
                if loser.route is not exchange.route:
                    reason = OVERTAKEN if won is not None else GIVEN_UP
                    exchange.earlier.append(exchange.tried(loser.route, reason))
                loser.overtaken(self._clock()) if won is not None else loser.close(0)
            if second is not None:
                self._count(exchange, won, second)
        return won

    async def _race(self, exchange: Exchange, running: dict[asyncio.Task[None], Attempt]) -> Attempt:
        """Takes out of `running` whoever comes to an end, until somebody has won."""
        while True:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for task in sorted(done, key=lambda task: task.exception() is not None):
                attempt = running.pop(task)
                exchange.route = attempt.route
                try:
                    task.result()
                except TryElsewhere as elsewhere:
                    attempt.close(0)
                    if not running:
                        raise
                    exchange.earlier.append(exchange.tried(attempt.route, elsewhere.reason))
                    self._blame.failed(exchange, attempt.route.replica, elsewhere)
                else:
                    return attempt

    def _second(self, exchange: Exchange, waited_s: float) -> Attempt | None:
        """Dispatched, if there is to be one."""
        route = self._another(exchange)
        if isinstance(route, str):
            denied = route
        elif route.ttft_s > waited_s:
            denied = "slow"
        elif not self._budget.spend():
            denied = "budget"
        else:
            exchange.prepared.excluded[route.decision.choice] = True
            return Attempt(route, self._fleet, self._clock(), exchange.interrupt.loop)
        self._metrics.hedges_denied.labels(denied).inc()
        return None

    def _another(self, exchange: Exchange) -> Route | str:
        """Where it may go as well, or why nowhere. Its group stays at home."""
        prepared = exchange.prepared
        level = min(int(prepared.request.priority), LEVELS - 1)
        group, prepared.group = prepared.group, None
        try:
            room = partial(has_room, settings=self._queue, level=level)
            return self._router.choose(prepared, room) or "nobody"
        except Saturated:
            return "no_room"
        finally:
            prepared.group = group

    def _count(self, exchange: Exchange, won: Attempt | None, second: Attempt) -> None:
        result = "neither" if won is None else "won" if won is second else "lost"
        self._metrics.hedges.labels(result).inc()
        if won is second:
            exchange.retries += 1  # nobody is to learn from when its first token came


async def _begin(exchange: Exchange, attempt: Attempt, open_: Open) -> None:
    """Return once its answer begins. In a task of its own, which ends early if the replica is taken out.

    Raises:
        TryElsewhere: it does not.
    """
    silence = Interrupt()
    leave = partial(silence.fire, Reason.BACKEND_SILENT)
    waiting = attempt.route.replica.waiting
    waiting.add(leave)
    try:
        response = attempt.response = await open_(exchange, attempt.route)
        if response.content_type == "text/event-stream" and not await response.has_body():
            raise broken(ConnectionClosed())
    except FAILURES as failure:
        raise broken(failure) from None
    except asyncio.CancelledError:
        reason = silence.take()
        if reason is None:
            raise
        raise TryElsewhere(reason.value, unreachable("it fell silent")) from None
    finally:
        waiting.discard(leave)
        silence.disarm()
