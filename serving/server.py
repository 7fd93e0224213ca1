"""The web server around the application: uvicorn with uvloop and httptools, one process."""

from __future__ import annotations

import logging
import math
import socket

import uvicorn
from starlette.applications import Starlette

from steersman.serving.admin.listener import admin_listening
from steersman.serving.config import RouterSettings
from steersman.serving.connection import protocol_of
from steersman.serving.sockets import BACKLOG, listen

logger = logging.getLogger("steersman.serving")


def open_socket(settings: RouterSettings) -> socket.socket:
    """The public listening socket.

    Raises:
        ConfigError: the address is taken, or not this machine's.
    """
    return listen(settings.host, settings.port)


def make_server(app: Starlette, settings: RouterSettings) -> uvicorn.Server:
    """A server for the router. On SIGTERM it takes no new connections, lets requests end for
    `timeouts.drain_s`, and then cuts them."""
    tls = app.state.parts.tls
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_of(app.state.parts),
        ssl_context_factory=None if tls is None else lambda *_: tls.context,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=math.ceil(settings.timeouts.keep_alive_s),
        timeout_graceful_shutdown=math.ceil(settings.timeouts.drain_s),
    )
    return uvicorn.Server(config)


async def serve_forever(app: Starlette, settings: RouterSettings, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, and drain."""
    parts = app.state.parts
    _tell(listener, "listening on", secure=parts.tls is not None)
    async with admin_listening(parts) as admin_port:
        if admin_port is not None:
            logger.info("operators are listened to on http://%s:%d", settings.admin.host, admin_port)
        await make_server(app, settings).serve(sockets=[listener])


def _tell(listener: socket.socket, what: str, *, secure: bool) -> None:
    host, port = listener.getsockname()[:2]
    scheme = "https" if secure else "http"
    logger.info("%s %s://%s:%d", what, scheme, f"[{host}]" if ":" in host else host, port)
