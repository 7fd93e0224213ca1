"""The web server around the application: uvicorn with uvloop and httptools, one process."""

from __future__ import annotations

import math

import uvicorn
from starlette.types import ASGIApp

from steersman.serving.config import RouterSettings

KEEP_ALIVE_S = 75
"""Longer than the 60 s of common load balancers, so that they and not we close idle connections."""


def make_server(app: ASGIApp, settings: RouterSettings) -> uvicorn.Server:
    """A server for the router. On SIGTERM it takes no new connections, lets requests end for
    `timeouts.drain_s`, and then cuts them."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=4096,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.timeouts.drain_s),
    )
    return uvicorn.Server(config)
