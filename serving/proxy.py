"""Finding a replica that answers (SPEC D3): attempts, retries within a budget, interruptions.

While nothing has been sent to the client, a replica that cannot be reached, breaks off or answers 5xx
costs nothing but time: the request goes to another one.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

from steersman.serving import headers as H
from steersman.serving.attempt import Attempt
from steersman.serving.blame import Blame
from steersman.serving.config import RouterSettings
from steersman.serving.degradation import NOBODY, Degradation
from steersman.serving.errors import ApiError, Code
from steersman.serving.exchange import Answer, Exchange, Tried
from steersman.serving.health import HealthMonitor
from steersman.serving.hedging import Hedging
from steersman.serving.interrupt import Reason
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet
from steersman.serving.relay import Relay, TryElsewhere, broken, unreachable
from steersman.serving.retries import RetryBudget
from steersman.serving.retry_after import retry_after_s
from steersman.serving.router import Route, Router
from steersman.serving.surface import Work
from steersman.serving.upstream import FAILURES, Upstream
from steersman.serving.waiting_room import WaitingRoom
from steersman.serving.wire.response import Response
from steersman.traces.schema import Status

_MOST_ERROR_BYTES = 2**20


class Proxy:
    """Serves prepared requests from the fleet."""

    def __init__(
        self,
        settings: RouterSettings,
        fleet: Fleet,
        router: Router,
        waiting_room: WaitingRoom,
        upstream: Upstream,
        monitor: HealthMonitor,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._waiting_room = waiting_room
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock
        self._blame = Blame(monitor, settings.retries, metrics, clock)
        self._relay = Relay(settings, monitor, self._blame, clock)
        self._budget = RetryBudget(settings.retries)
        self._hedging = Hedging(settings, router, fleet, self._blame, metrics, clock)
        self._degradation = Degradation(fleet, metrics)

    def apply(self, settings: RouterSettings) -> None:
        """From now on these count; an attempt under way keeps the time-outs it has."""
        self._settings = settings
        self._blame.settings = settings.retries
        self._budget.apply(settings.retries)
        self._hedging.apply(settings)
        self._relay = replace(self._relay, settings=settings)

    async def serve(self, exchange: Exchange) -> None:
        """Answer the client, one way or the other; `exchange` tells how it went.

        Raises:
            ApiError: nothing was sent, and this is what to tell the client.
        """
        self._budget.request()
        self._hedging.request()
        self._degradation.notice(exchange)
        exchange.answered = self._blame.answered
        try:
            await self._serve(exchange)
        finally:
            self._blame.unanswered(exchange)

    async def _serve(self, exchange: Exchange) -> None:
        failure: TryElsewhere | None = None
        tried: Tried | None = None
        while (route := await self._next(exchange, failure)) is not None:
            if tried is not None:
                exchange.earlier.append(tried)
            exchange.route = route
            exchange.prepared.excluded[route.decision.choice] = True
            try:
                await self._attempt(exchange, route)
            except TryElsewhere as elsewhere:
                failure = elsewhere
                tried = exchange.tried(exchange.route, elsewhere.reason)
                self._blame.failed(exchange, exchange.route.replica, elsewhere)
                nobody_left = bool(exchange.prepared.excluded.all())
                if not self._may_retry(exchange, elsewhere) and not nobody_left:
                    break
            else:
                return
        if failure is None:
            raise self._nobody(exchange)
        exchange.reason = failure.reason
        if failure.answer is None:
            raise failure.error
        if failure.doubtful:
            if not exchange.prepared.excluded.all():
                raise failure.error  # somebody who cannot be asked now may do better
            exchange.answered = None  # it proves nothing about those who did no better
        # Everybody who was asked said so: the client gets the last one's own words.
        await exchange.send_whole(failure.answer)

    async def _next(self, exchange: Exchange, failure: TryElsewhere | None) -> Route | None:
        """Who is asked next; None if nobody can be."""
        while True:
            self._blame.check(exchange)
            route = await self._waiting_room.choose(exchange)
            if route is not None:
                return route
            down = failure is None or failure.answer is None or failure.answer.status >= 500
            if not down or not self._degradation.step_down(exchange):
                return None

    def _may_retry(self, exchange: Exchange, failure: TryElsewhere) -> bool:
        nobody_left = exchange.prepared.excluded.all()
        if nobody_left or exchange.retries >= self._settings.retries.attempts:
            return False
        if not self._budget.spend():
            self._metrics.retries_denied.inc()
            return False
        self._metrics.retries.labels(failure.reason).inc()
        exchange.retries += 1
        return True

    def _nobody(self, exchange: Exchange) -> ApiError:
        pool = exchange.prepared.pool
        exchange.status = Status.REJECTED
        exchange.reason = Code.NO_HEALTHY_REPLICA.value
        asked = exchange.stands_in_for or pool.model
        rests_s = [replica.resting_until_s - self._clock() for replica in pool.replicas]
        resting = [rest_s for rest_s in rests_s if rest_s > 0.0]
        why = f"none of the {len(pool.ids)} replicas of '{pool.model}' takes requests now"
        if exchange.stands_in_for:
            why = f"no replica of '{asked}', nor of what stands in for it, takes requests now"
        if resting:
            why += f" ({len(resting)} asked to be left in peace)"
        return ApiError(
            503,
            Code.NO_HEALTHY_REPLICA,
            f"{why}; try again",
            retry_after_s=min([self._settings.health.interval_s, *resting]),
            headers=[(H.DEGRADED_HEADER, NOBODY)],
        )

    async def _attempt(self, exchange: Exchange, route: Route) -> None:
        attempt = Attempt(route, self._fleet, self._clock(), exchange.interrupt.loop)
        try:
            if self._hedging.may(exchange):
                attempt = await self._hedging.first_to_answer(exchange, attempt, self._open)
                response = attempt.response
                assert response is not None
            else:
                route.replica.waiting.add(exchange.leave)
                response = attempt.response = await self._open(exchange, route)
            await self._relay.pass_on(exchange, attempt.flight, response)
        except asyncio.CancelledError:
            reason = exchange.interrupt.take()
            if reason is None:
                exchange.reason = "stopped"
                raise
            await self._interrupted(exchange, attempt.route, reason)
        finally:
            exchange.stay()
            attempt.close(exchange.output_tokens)

    async def _open(self, exchange: Exchange, route: Route) -> Response:
        """The replica's answer, up to its headers."""
        timeouts, intake, request = self._settings.timeouts, exchange.intake, exchange.prepared.request
        replica = route.replica
        headers = H.upstream_headers(
            intake.headers,
            authorization=replica.authorization,
            request_id=request.request_id,
        )
        priority = request.priority if intake.api.work is Work.GENERATE else None
        body = replica.body_for(intake.body, intake.text.model, request.model, priority)
        exchange.interrupt.expect(replica.answers_within_s(timeouts), Reason.BACKEND_TIMEOUT)
        try:
            response = await self._upstream.post(replica, exchange.path, body, headers)
        except FAILURES as failure:
            raise broken(failure) from None
        if response.status in self._settings.retries.statuses:
            raise await self._turned_away(route, response)
        return response

    async def _turned_away(self, route: Route, response: Response) -> TryElsewhere:
        """The replica answered a status that is tried elsewhere."""
        self._note_retry_after(route, response)
        try:
            body = await response.read_up_to(_MOST_ERROR_BYTES)
        except FAILURES as failure:
            return broken(failure)
        finally:
            response.close()
        answer = Answer(response.status, H.downstream_headers(response.raw_headers), body)
        message = f"replica {route.replica.id} answered {response.status}; try again"
        error = ApiError(502, Code.BACKEND_UNREACHABLE, message)
        # With Retry-After a 503 is what 429 is: busy, not broken.
        busy = response.status == 503 and bool(response.header(b"retry-after"))
        fault = f"answered {response.status}" if response.status >= 500 and not busy else ""
        return TryElsewhere(f"status_{response.status}", error, answer, fault=fault)

    def _note_retry_after(self, route: Route, response: Response) -> None:
        wait_s = retry_after_s(response.header(b"retry-after"))
        if wait_s is not None:
            rest_s = min(wait_s, self._settings.retries.max_retry_after_s)
            route.replica.resting_until_s = self._clock() + rest_s

    async def _interrupted(self, exchange: Exchange, route: Route, reason: Reason) -> None:
        """The client went away, or somebody took too long.

        Raises:
            TryElsewhere: the replica has been taken out, and nothing had come from it.
            ApiError: nothing had come from it in all the time there was.
        """
        exchange.output_tokens = exchange.streamed_tokens
        exchange.reason = reason.value
        if reason is Reason.BACKEND_SILENT:
            raise TryElsewhere(reason.value, unreachable("it fell silent"))
        if reason is not Reason.BACKEND_TIMEOUT:
            exchange.status = Status.CANCELLED
            if reason is Reason.CLIENT_STALLED:  # to close would be to wait until it has taken all
                exchange.outlet.abort()
            return
        self._blame.failed_midway(exchange, route.replica, "a request timed out", broke=False)
        if exchange.first_token_s is not None:
            await self._relay.break_stream(exchange, Code.BACKEND_TIMEOUT, "the replica fell silent")
            return
        if exchange.http_status:
            return  # a whole answer, begun: only a connection that breaks says that it is not whole
        # Not tried elsewhere: the client has waited long enough, and the request may be the reason.
        raise ApiError(504, Code.BACKEND_TIMEOUT, "the replica did not answer in time; try again")
