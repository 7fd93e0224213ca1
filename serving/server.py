"""The web server around the application: uvicorn with uvloop and httptools, one process."""

from __future__ import annotations

import logging
import math
import socket

import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from steersman.serving.config import RouterSettings
from steersman.serving.errors import ApiError, Code
from steersman.traces.errors import ConfigError

HTTP_ERROR = ApiError(
    400, Code.INVALID_HTTP, "this is not a valid HTTP/1.1 request; correct its framing"
)

logger = logging.getLogger("steersman.serving")

KEEP_ALIVE_S = 75
"""Longer than the 60 s of common load balancers, so that they and not we close idle connections."""
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


class RouterProtocol(HttpToolsProtocol):
    """uvicorn's, with OpenAI's errors where there is no request to route."""

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """What the parser cannot frame is answered, and the connection closed."""
        head = b"".join(b"%s: %s\r\n" % header for header in HTTP_ERROR.headers)
        self.transport.write(b"HTTP/1.1 400 Bad Request\r\n" + head + b"connection: close\r\n\r\n")
        self.transport.write(HTTP_ERROR.body)
        self.transport.close()


def make_server(app: ASGIApp, settings: RouterSettings) -> uvicorn.Server:
    """A server for the router. On SIGTERM it takes no new connections, lets requests end for
    `timeouts.drain_s`, and then cuts them."""
    config = uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http=RouterProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=math.ceil(settings.timeouts.drain_s),
    )
    return uvicorn.Server(config)


async def serve_forever(app: ASGIApp, settings: RouterSettings, listener: socket.socket) -> None:
    """Serve until SIGTERM or Ctrl-C, and drain."""
    host, port = listener.getsockname()[:2]
    logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    await make_server(app, settings).serve(sockets=[listener])
