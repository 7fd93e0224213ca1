"""The emulated backend as an ASGI application."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from steersman.env.emulator.backend import Backend
from steersman.env.emulator.completions import CompletionEndpoint
from steersman.env.emulator.metrics import CONTENT_TYPE
from steersman.env.emulator.protocol import ApiError, bad_request
from steersman.env.emulator.settings import EmulatorSettings, Faults
from steersman.traces.errors import ConfigError
from steersman.traces.settings import parse_settings


def create_backend(settings: EmulatorSettings) -> Starlette:
    """An OpenAI-compatible server that behaves like vLLM on the described hardware.

    The engine is compiled at start-up: the server answers nothing before it is ready. Not to be shared
    between event loops or worker processes: one application is one replica.

    Raises:
        ConfigError: the settings name no known profile.
    """
    backend = Backend(settings)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        backend.start()
        yield
        backend.close()

    pages = _Pages(backend)
    return Starlette(
        routes=[
            Route("/v1/chat/completions", CompletionEndpoint(backend, chat=True), methods=["POST"]),
            Route("/v1/completions", CompletionEndpoint(backend, chat=False), methods=["POST"]),
            Route("/v1/models", pages.models),
            Route("/health", pages.health),
            Route("/metrics", pages.metrics),
            Route("/emulator", pages.describe),
            Route("/emulator/faults", pages.set_faults, methods=["POST"]),
        ],
        exception_handlers={HTTPException: _http_error},
        lifespan=lifespan,
    )


class _Pages:
    """Everything but completions."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    async def models(self, _request: Request) -> Response:
        backend = self._backend
        await backend.driver.thawed()
        card = {
            "id": backend.model,
            "object": "model",
            "created": backend.created,
            "owned_by": "steersman-emulator",
            "root": backend.profile.model.name,
            "parent": None,
            "max_model_len": backend.driver.token_limit,
        }
        return _json({"object": "list", "data": [card]})

    async def health(self, _request: Request) -> Response:
        backend = self._backend
        await backend.driver.thawed()
        broken = backend.faults.unhealthy or backend.driver.error is not None
        return Response(status_code=503 if broken else 200)

    async def metrics(self, _request: Request) -> Response:
        await self._backend.driver.thawed()
        lie = self._backend.faults.metrics
        if lie == "rubbish":
            return Response("<html>503 Service Temporarily Unavailable</html>", media_type="text/html")
        return Response(self._backend.driver.page.render(idle=lie == "idle"), media_type=CONTENT_TYPE)

    async def describe(self, _request: Request) -> Response:
        """What this replica pretends to be; answers while frozen, too."""
        backend = self._backend
        return _json(
            {
                "replica_id": backend.replica_id,
                "model": backend.model,
                "profile": backend.profile.name,
                "speed": backend.settings.speed,
                "faults": backend.faults.model_dump(),
            }
        )

    async def set_faults(self, request: Request) -> Response:
        try:
            faults = parse_settings(orjson.loads(await request.body()), Faults, source="faults")
        except orjson.JSONDecodeError as error:
            return bad_request(f"the request body is not valid JSON: {error}").response()
        except ConfigError as error:
            return bad_request(str(error)).response()
        self._backend.set_faults(faults)
        return _json(faults.model_dump())


async def _http_error(_request: Request, error: Exception) -> Response:
    """Unknown paths and methods, in the shape of every other error."""
    status = error.status_code if isinstance(error, HTTPException) else 500
    kind = "NotFoundError" if status == 404 else "BadRequestError"
    return ApiError(status, kind, str(getattr(error, "detail", error))).response()


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")
