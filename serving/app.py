"""The router as an ASGI application.

`app → router (snapshot → observation → policy → guard) → proxy → recorder`; the control loops run
beside it. `create_app` checks the configuration; connections are opened by the lifespan.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from steersman.serving.api import ApiEndpoint
from steersman.serving.config import RouterSettings
from steersman.serving.outcome_log import Overflows
from steersman.serving.pages import Pages
from steersman.serving.parts import build_parts
from steersman.serving.stored import STORED, StoredEndpoint
from steersman.serving.surface import SURFACE
from steersman.serving.workers.board import Seat


def public_pages(settings: RouterSettings, pages: Pages) -> list[Route]:
    """Where operators have an address of their own, clients are only told whether there is service."""
    routes = [Route("/ready", pages.ready), Route("/live", pages.live)]
    if settings.admin.port is not None:
        return [*routes, Route("/health", pages.ready)]
    return [*routes, Route("/health", pages.health), Route("/metrics", pages.metrics)]


class RouterApp(Starlette):
    """Starlette, but what is passed to the replicas goes straight to its endpoint: every piece of a
    stream would pass through each layer in between."""

    endpoints: Mapping[str, ApiEndpoint]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, or the lifespan."""
        if scope["type"] == "http" and scope["method"] == "POST":
            endpoint = self.endpoints.get(scope["path"])
            if endpoint is not None:
                await endpoint(scope, receive, send)
                return
        await super().__call__(scope, receive, send)


def create_app(
    settings: RouterSettings, seat: Seat | None = None, overflows: Overflows | None = None
) -> RouterApp:
    """The router for these settings; `seat` and `overflows` of one of several workers.

    Raises:
        ConfigError: a profile, policy, key or directory that the settings name is wrong. A bundle that
            is missing or corrupt is no error: the fallback serves.
    """
    parts = build_parts(settings, seat=seat, overflows=overflows)
    pages = Pages(parts)

    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        async with parts.running():
            yield

    endpoints = {api.path: ApiEndpoint(parts, api) for api in SURFACE}
    app = RouterApp(
        routes=[
            # Other methods are told that POST is the one.
            *(Route(path, endpoint, methods=["POST"]) for path, endpoint in endpoints.items()),
            *(
                Route(stored.path, StoredEndpoint(parts, stored), methods=list(stored.methods))
                for stored in STORED
            ),
            Route("/v1/models", pages.models),
            Route("/v1/models/{model:path}", pages.model),  # names may have slashes
            *public_pages(settings, pages),
        ],
        lifespan=lifespan,
        exception_handlers={HTTPException: pages.not_served, Exception: pages.failed},
    )
    # A client that writes `//v1/models` or `/v1/models/` is told 404, not sent elsewhere.
    app.router.redirect_slashes = False
    app.endpoints = endpoints
    app.state.parts = parts
    return app
