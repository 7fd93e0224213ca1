"""The web server around the application: uvicorn with uvloop and httptools, one process."""

from __future__ import annotations

import logging
import math
import socket

import uvicorn
from starlette.applications import Starlette

from steersman.serving.config import RouterSettings
from steersman.serving.connection import protocol_of
from steersman.traces.errors import ConfigError

logger = logging.getLogger("steersman.serving")

BACKLOG = 4096


def open_socket(settings: RouterSettings) -> socket.socket:
    """The listening socket.

    Raises:
        ConfigError: the address is taken, or not this machine's.
    """
    try:
        family = socket.getaddrinfo(settings.host, settings.port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server(
            (settings.host, settings.port), family=family, backlog=BACKLOG, reuse_port=False
        )
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {settings.host}:{settings.port} ({error.strerror}); "
            "give another 'host' or 'port'"
        ) from None


def make_server(app: Starlette, settings: RouterSettings) -> uvicorn.Server:
    """A server for the router. On SIGTERM it takes no new connections, lets requests end for
    `timeouts.drain_s`, and then cuts them."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=protocol_of(app.state.parts),
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
    host, port = listener.getsockname()[:2]
    logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    await make_server(app, settings).serve(sockets=[listener])
