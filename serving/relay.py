"""Moving the bytes of an answer from a replica to the client.

Until the first piece of an answer is here, nothing is sent to the client, so that a break may still be
made good elsewhere (`TryElsewhere`). After that it can only be reported.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from steersman.serving import headers as H
from steersman.serving.config import RouterSettings
from steersman.serving.errors import ApiError, Code, stream_error_event
from steersman.serving.exchange import Answer, Exchange
from steersman.serving.flight import Flight
from steersman.serving.health import HealthMonitor
from steersman.serving.interrupt import Reason
from steersman.serving.loops import Clock
from steersman.serving.passing import Passing
from steersman.serving.rubbish import begins_stream, is_whole_answer
from steersman.serving.surface import Work
from steersman.serving.tap import Usage, calls_tool, read_usage
from steersman.serving.upstream import FAILURES, describe_failure
from steersman.serving.wire.errors import CannotConnect, ConnectionClosed
from steersman.serving.wire.response import Response
from steersman.traces.schema import Status

if TYPE_CHECKING:
    from steersman.serving.blame import Blame


_MOST_RUBBISH_BYTES = 2**16


class TryElsewhere(Exception):  # noqa: N818 (a signal to the proxy)
    """An attempt failed before anything was sent to the client.

    Args:
        reason: for the metrics.
        error: what to tell the client if nobody else can be tried.
        answer: the replica's own words, which the client gets instead if there are any.
        fault: what may be charged to the replica, in one line; empty if nothing.
        arrived: whether the request had reached the replica.
        broke: whether the connection broke then.
        doubtful: the replica is at fault only if another one did better.
    """

    def __init__(
        self,
        reason: str,
        error: ApiError,
        answer: Answer | None = None,
        *,
        fault: str = "",
        arrived: bool = True,
        broke: bool = False,
        doubtful: bool = False,
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.error = error
        self.answer = answer
        self.fault = fault
        self.arrived = arrived
        self.broke = broke
        self.doubtful = doubtful


def broken(failure: BaseException) -> TryElsewhere:
    """The connection failed, or ended before the answer began."""
    what = describe_failure(failure)
    arrived = not isinstance(failure, (CannotConnect, TimeoutError))
    return TryElsewhere(
        "connection",
        unreachable(what),
        fault=f"a request failed: {what}",
        arrived=arrived,
        broke=arrived,
    )


def rubbish(answer: Answer) -> TryElsewhere:
    """It answered 200, and what came is no answer."""
    error = unreachable("its answer is none")
    fault = "what it answers is no answer of an engine"
    return TryElsewhere("rubbish", error, answer, fault=fault, doubtful=True)


def unreachable(what: str) -> ApiError:
    """What the client is told if nobody else can be tried."""
    message = f"the replica could not answer ({what}) and no other could be tried; try again"
    return ApiError(503, Code.BACKEND_UNREACHABLE, message, retry_after_s=1.0)


@dataclass(frozen=True, slots=True)
class Relay:
    """Passes answers on; one for the whole router."""

    settings: RouterSettings
    monitor: HealthMonitor
    blame: Blame
    clock: Clock

    async def pass_on(self, exchange: Exchange, flight: Flight, response: Response) -> None:
        """Pass on an answer whose headers are here.

        Raises:
            TryElsewhere: it broke before anything was sent to the client.
        """
        if response.content_type == "text/event-stream":
            await self._stream(exchange, flight, response)
        else:
            await self._whole(exchange, flight, response)

    async def break_stream(self, exchange: Exchange, code: Code, what: str) -> None:
        """Tell the client, in the stream's own language, that it ends here."""
        exchange.status, exchange.reason = Status.FAILED, code.value
        exchange.output_tokens = exchange.streamed_tokens
        boundary = exchange.tap.at_boundary
        await exchange.end(stream_error_event(code, f"the answer ended early: {what}", boundary))

    async def _whole(self, exchange: Exchange, flight: Flight, response: Response) -> None:
        """Not a stream: held until it is complete, so that a break can be made good elsewhere."""
        try:
            body = await response.read_up_to(self.settings.limits.hold_bytes + 1)
        except FAILURES as failure:
            raise broken(failure) from None
        answer = Answer(response.status, H.downstream_headers(response.raw_headers), body)
        if not response.at_end:
            await self._rest(exchange, flight, answer, response)
            return
        if self._may_be_rubbish(exchange, response) and not is_whole_answer(answer.body):
            raise rubbish(answer)
        exchange.called_tool = calls_tool(answer.body)
        if response.status < 400:
            exchange.found_id(exchange.tap.response_id(answer.body))
        self._landed(exchange, flight, response.status, read_usage(answer.body))
        await exchange.send_whole(answer)

    async def _rest(self, exchange: Exchange, flight: Flight, held: Answer, response: Response) -> None:
        """Too large to hold: passed on piece by piece; a break breaks the client's connection."""
        await exchange.start(held.status, held.headers)
        await self._piece(exchange, held.body)
        try:
            while piece := await response.read_some():
                await self._piece(exchange, piece)
        except FAILURES as failure:
            exchange.reason = Code.STREAM_BROKEN.value
            what = describe_failure(failure)
            self.blame.failed_midway(
                exchange, flight.route.replica, f"an answer broke: {what}", broke=True
            )
            return
        self._landed(exchange, flight, held.status, None)
        await exchange.end()

    async def _stream(self, exchange: Exchange, flight: Flight, response: Response) -> None:
        tap, replica = exchange.tap, flight.route.replica
        interrupt, idle_s = exchange.interrupt, self.settings.timeouts.idle_s
        passing = Passing(exchange, replica.pulse, self.clock)
        last = b""
        try:
            while piece := await response.read_some():
                if exchange.first_token_s is None:
                    await self._begin(exchange, flight, response, piece)
                    interrupt.expect(idle_s, Reason.BACKEND_TIMEOUT)
                if response.at_end:  # the last piece goes with the end
                    tap.feed(piece)
                    last = piece
                    break
                if not passing(piece):
                    interrupt.expect(idle_s, Reason.CLIENT_STALLED)
                    await exchange.outlet.drained()
                    interrupt.expect(idle_s, Reason.BACKEND_TIMEOUT)
                if response.status < 400:  # to be cancelled by its id while it streams, perhaps
                    exchange.found_id(tap.response_id())
                await response.pour(passing)
        except FAILURES as failure:
            if exchange.first_token_s is None:
                raise broken(failure) from None
            what = describe_failure(failure)
            self.blame.failed_midway(exchange, replica, f"a stream broke: {what}", broke=True)
            await self.break_stream(exchange, Code.STREAM_BROKEN, what)
            return
        if exchange.first_token_s is None:
            raise broken(ConnectionClosed())
        if response.status < 400 and not tap.complete:
            # It says so itself, or a crash looked like an end. The client sees what there is to see.
            exchange.end_s = self.clock()
            exchange.reason = Code.STREAM_BROKEN.value
            exchange.output_tokens = exchange.streamed_tokens
        else:
            exchange.called_tool = tap.called_tool
            exchange.found_id(tap.response_id())
            self._landed(exchange, flight, response.status, tap.usage())
        await exchange.end(last)

    async def _begin(self, exchange: Exchange, flight: Flight, response: Response, piece: bytes) -> None:
        """The first piece of a stream is here.

        Raises:
            TryElsewhere: it looks like none.
        """
        if self._may_be_rubbish(exchange, response) and not begins_stream(piece):
            raise rubbish(await self._held(response, piece))
        exchange.first_token_s = self.clock()
        if response.status < 400:  # how fast it refuses says nothing about its tokens
            flight.first_token(exchange.first_token_s)
        await exchange.start(response.status, H.downstream_headers(response.raw_headers))

    def _may_be_rubbish(self, exchange: Exchange, response: Response) -> bool:
        """Whether it might be: it says all is well, and should have generated something."""
        return response.status == 200 and exchange.intake.api.work is Work.GENERATE

    async def _held(self, response: Response, first: bytes) -> Answer:
        """All of a short answer, to be passed on if nobody has a better one."""
        body = first
        while len(body) <= _MOST_RUBBISH_BYTES and (piece := await response.read_some()):
            body += piece
        return Answer(response.status, H.downstream_headers(response.raw_headers), body)

    async def _piece(self, exchange: Exchange, piece: bytes) -> None:
        idle_s, interrupt = self.settings.timeouts.idle_s, exchange.interrupt
        if not exchange.outlet.write(piece):
            interrupt.expect(idle_s, Reason.CLIENT_STALLED)
            await exchange.outlet.drained()
        interrupt.expect(idle_s, Reason.BACKEND_TIMEOUT)

    def _landed(self, exchange: Exchange, flight: Flight, status: int, usage: Usage | None) -> None:
        """The answer is complete."""
        exchange.end_s = self.clock()
        exchange.usage = usage
        if status >= 400:
            exchange.status = Status.FAILED if status >= 500 else Status.REJECTED
            exchange.reason = f"status_{status}"
            return
        self.monitor.request_passed(flight.route.replica)
        exchange.output_tokens = usage.completion_tokens if usage else exchange.streamed_tokens
        exchange.status = Status.OK
        if exchange.intake.api.work is Work.TEXT:
            flight.abort(0)  # its haste says nothing about the engine
        else:
            flight.finish(exchange.end_s, exchange.output_tokens)
