"""Paths of the OpenAI surface, from the first byte of a request to the last of its answer."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from functools import partial

from starlette.types import Receive, Scope, Send

from steersman.serving.errors import FAULT, ApiError, Code
from steersman.serving.exchange import Exchange
from steersman.serving.headers import DECISION_HEADER
from steersman.serving.intake import ClientGone, find_pool, read_request, understand
from steersman.serving.interrupt import Interrupt, Reason
from steersman.serving.outlet import outlet_of
from steersman.serving.parts import Parts
from steersman.serving.router import Prepared, new_request_id
from steersman.serving.surface import ApiPath
from steersman.traces.schema import Status


class Endpoint(ABC):
    """An ASGI application for one path: no request or response objects on the way of the bytes."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        parts = self._parts
        arrival_s = parts.clock()
        parts.metrics.in_flight.inc()
        request_id = new_request_id()
        status = 0
        try:
            status = await self._serve(scope, receive, send, arrival_s, request_id)
        except ApiError as error:
            status = error.status
            parts.metrics.refusals.labels(error.code.value).inc()
            await _send_error(send, error, request_id)
        except ClientGone:
            pass
        except Exception:
            fault = ApiError(500, Code.INTERNAL_ERROR, FAULT)
            status = fault.status
            with contextlib.suppress(RuntimeError):  # an answer has begun: the server takes no other
                await _send_error(send, fault, request_id)
                parts.metrics.refusals.labels(fault.code.value).inc()
            raise
        finally:
            parts.metrics.in_flight.dec()
            if status:
                parts.metrics.responses.labels(str(status)).inc()

    @abstractmethod
    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, arrival_s: float, request_id: str
    ) -> int:
        """Returns the status that the client got; 0 if none.

        Raises:
            ApiError: what to tell the client.
            ClientGone: nobody is to be told anything.
        """


class ApiEndpoint(Endpoint):
    """One of the paths that are passed to a replica of a model."""

    def __init__(self, parts: Parts, api: ApiPath) -> None:
        super().__init__(parts)
        self._api = api

    async def _serve(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,  # noqa: ARG002
        arrival_s: float,
        request_id: str,
    ) -> int:
        parts = self._parts
        caller = parts.gate.caller(scope["headers"])  # before the body: a stranger need not be read
        intake = await read_request(self._api, scope, receive, arrival_s, parts.settings)
        intake.headers = parts.gate.passes_on(intake.headers)
        intake.hints = caller.take(intake.hints)
        pool = find_pool(parts.fleet, intake.text.model, caller)
        request = understand(intake, pool, parts.counter, parts.wording, request_id)
        prepared = parts.router.prepare(request, pool, intake.hints)
        prepared.group = await parts.affinity.group(intake, request, pool)
        grant = await parts.limiter.admit(caller, request_id, expected_tokens(prepared))
        interrupt, outlet = Interrupt(parts.deadlines), outlet_of(scope)
        exchange = Exchange(intake, prepared, interrupt, outlet, limit_headers=grant.headers)
        if parts.canary is not None:
            parts.canary.begin(exchange)
        exchange.keep = self._keep
        try:
            outlet.watch(partial(interrupt.fire, Reason.CLIENT_GONE))
            await parts.proxy.serve(exchange)
        except ApiError as error:
            exchange.reason = exchange.reason or error.code.value
            raise
        except asyncio.CancelledError:
            # Between two attempts; within one, the proxy has dealt with it.
            reason = interrupt.take()
            if reason is None:
                raise
            exchange.status, exchange.reason = Status.CANCELLED, reason.value
        finally:
            outlet.unwatch()
            interrupt.disarm()
            parts.recorder.record(exchange)
            parts.limiter.settle(grant, spent_tokens(exchange))
        return exchange.http_status

    def _keep(self, exchange: Exchange) -> None:
        if exchange.route is not None:
            request, replica = exchange.prepared.request, exchange.route.replica
            self._parts.affinity.keep_response(exchange.response_id, request.tenant, replica.id)


def expected_tokens(prepared: Prepared) -> float:
    """What a request will take from a budget of tokens, as far as it can be told at the door."""
    request = prepared.request
    output = prepared.output_p50
    if request.max_tokens:
        output = min(output, float(request.max_tokens))
    return request.input_tokens + output


def spent_tokens(exchange: Exchange) -> float:
    """What it took: nothing where the client got no answer and would have had one."""
    if exchange.status not in {Status.OK, Status.CANCELLED} and not exchange.output_tokens:
        return 0.0
    usage = exchange.usage
    prompt = usage.prompt_tokens if usage else exchange.prepared.request.input_tokens
    return float(prompt + exchange.output_tokens)


async def _send_error(send: Send, error: ApiError, request_id: str) -> None:
    headers = [*error.headers, (DECISION_HEADER, request_id.encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body})
