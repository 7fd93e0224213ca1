"""The router as an ASGI application.

`app → router (snapshot → observation → policy → guard) → proxy → recorder`; the control loops run
beside it. `create_app` checks the configuration; connections are opened by the lifespan.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request as HttpRequest
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from steersman.serving import metrics as M
from steersman.serving.config import RouterSettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.exchange import Exchange
from steersman.serving.headers import DECISION_HEADER
from steersman.serving.intake import ClientGone, find_pool, read_request, understand
from steersman.serving.interrupt import Interrupt, Reason
from steersman.serving.parts import Parts, build_parts
from steersman.serving.pool import Pool
from steersman.serving.router import new_request_id
from steersman.traces.schema import Status


def create_app(settings: RouterSettings) -> Starlette:
    """The router for these settings.

    Raises:
        ConfigError: a profile, policy, key or directory that the settings name is wrong. A bundle that
            is missing or corrupt is no error: the fallback serves.
    """
    parts = build_parts(settings)
    completions = [
        Route(path, CompletionEndpoint(parts, path), methods=["POST"])
        for path in ("/v1/chat/completions", "/v1/completions")
    ]
    pages = Pages(parts)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with parts.running():
            yield

    app = Starlette(
        routes=[
            *completions,
            Route("/v1/models", pages.models),
            Route("/v1/models/{model:path}", pages.model),  # names may have slashes
            Route("/health", pages.health),
            Route("/metrics", pages.metrics),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: _http_error, Exception: _internal_error},
    )
    app.state.parts = parts
    return app


class CompletionEndpoint:
    """An ASGI application for one path: no request or response objects on the way of the bytes."""

    def __init__(self, parts: Parts, path: str) -> None:
        self._parts = parts
        self._path = path

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
        finally:
            parts.metrics.in_flight.dec()
            if status:
                parts.metrics.responses.labels(str(status)).inc()

    async def _serve(
        self, scope: Scope, receive: Receive, send: Send, arrival_s: float, request_id: str
    ) -> int:
        parts, settings = self._parts, self._parts.settings
        intake = await read_request(scope, receive, arrival_s, settings.limits, settings.timeouts)
        pool = find_pool(parts.fleet, intake.text.model)
        request = understand(intake, pool, parts.counter, parts.wording, request_id)
        prepared = parts.router.prepare(request, pool, intake.hints)
        path = self._path
        if intake.query:
            path += "?" + intake.query.decode("latin-1")  # the server takes printable ASCII only
        interrupt = Interrupt()
        exchange = Exchange(intake, prepared, path, interrupt, send)
        watch = asyncio.create_task(_watch_client(receive, interrupt))
        try:
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
            interrupt.disarm()
            watch.cancel()
            parts.recorder.record(exchange)
        return exchange.http_status


class Pages:
    """The pages about the router itself."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    async def models(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """Every model that some backend serves, as OpenAI lists them."""
        pools = self._parts.fleet.pools.values()
        return JSONResponse({"object": "list", "data": [_model_card(pool) for pool in pools]})

    async def model(self, request: HttpRequest) -> Response:
        """One of them."""
        try:
            return JSONResponse(_model_card(find_pool(self._parts.fleet, request.path_params["model"])))
        except ApiError as error:
            return Response(error.body, error.status, dict(_decoded(error.headers)))

    async def health(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """200 while some replica takes requests, 503 otherwise."""
        report = self._parts.health_report()
        return JSONResponse(report, 503 if report["status"] == "unavailable" else 200)

    async def metrics(self, request: HttpRequest) -> Response:  # noqa: ARG002
        """The Prometheus page."""
        page = self._parts.metrics.page()
        return Response(page, headers={"content-type": M.CONTENT_TYPE})


def _model_card(pool: Pool) -> dict[str, Any]:
    """What OpenAI says of a model, with what a backend says of it."""
    told = next((r.cards[pool.model] for r in pool.replicas if pool.model in r.cards), {})
    return {"id": pool.model, "object": "model", "created": 0, "owned_by": "steersman"} | told


def _decoded(headers: list[tuple[bytes, bytes]]) -> list[tuple[str, str]]:
    return [(name.decode(), value.decode()) for name, value in headers]


async def _watch_client(receive: Receive, interrupt: Interrupt) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    interrupt.fire(Reason.CLIENT_GONE)


async def _send_error(send: Send, error: ApiError, request_id: str) -> None:
    headers = [*error.headers, (DECISION_HEADER, request_id.encode())]
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": error.body})


async def _http_error(request: HttpRequest, raised: Exception) -> Response:
    assert isinstance(raised, HTTPException)
    code = Code.METHOD_NOT_ALLOWED if raised.status_code == 405 else Code.NOT_FOUND
    what = f"{request.method} {request.url.path[:200]}"
    message = f"{what}: {raised.detail}; see /v1/models, /v1/chat/completions, /v1/completions"
    return _response(ApiError(raised.status_code, code, message), raised.headers)


async def _internal_error(request: HttpRequest, raised: Exception) -> Response:  # noqa: ARG001
    message = "the router failed on this request; its log says why"
    return _response(ApiError(500, Code.INTERNAL_ERROR, message))


def _response(error: ApiError, headers: Any = None) -> Response:
    return Response(error.body, error.status, dict(headers or {}), media_type="application/json")
