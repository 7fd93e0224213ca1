"""The web server around the application: uvicorn with uvloop and httptools, one process."""

from __future__ import annotations

import asyncio
import logging
import math
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from steersman.serving.config import RouterSettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.parts import Parts
from steersman.serving.reload import Reloaded, Reloader
from steersman.traces.errors import ConfigError

HTTP_ERROR = ApiError(
    400, Code.INVALID_HTTP, "this is not a valid HTTP/1.1 request; correct its framing"
)

logger = logging.getLogger("steersman.serving")

KEEP_ALIVE_S = 75
"""Longer than the 60 s of common load balancers, so that they and not we close idle connections."""
BACKLOG = 4096
LAST_TURNS = 25
"""Of 20 ms each, for connections that were taken last to send their request."""


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


class RouterServer(uvicorn.Server):
    """uvicorn's, with a lame-duck period: told to stop, it first says so to load balancers, still takes
    what comes and asks every client to connect elsewhere (`Connection: close`); then it takes no new
    connections, lets requests end, and cuts what is left.

    A second signal ends the lame-duck period at once, and SIGINT after that everything.
    """

    def __init__(self, config: uvicorn.Config, parts: Parts, on_ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._parts = parts
        self._leaves_at_s = math.inf

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal to stop."""
        lame_duck_s = self._parts.settings.timeouts.lame_duck_s
        if self._parts.draining or lame_duck_s <= 0.0:
            self._parts.draining = True
            super().handle_exit(sig, frame)
            return
        self._parts.draining = True
        self._captured_signals.append(sig)
        self._leaves_at_s = time.monotonic() + lame_duck_s
        logger.warning("stopping: requests are taken for another %g s", lame_duck_s)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        await super().startup(sockets)
        if self.started:
            self._on_ready()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second."""
        if self._parts.draining and (b"connection", b"close") not in self.config.encoded_headers:
            self.config.encoded_headers.append((b"connection", b"close"))
            counter = 0  # take it up at once
        if time.monotonic() >= self._leaves_at_s:
            self.should_exit = True
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let requests end, for as long as the settings say now."""
        self._parts.draining = True
        for server in self.servers:
            server.close()
        # Who has just been let in, and has not asked yet, would otherwise be cut off. Counted in turns
        # of the loop, not by the clock: a process that got no CPU has not listened meanwhile.
        for _ in range(LAST_TURNS):
            if not self.server_state.connections or self.force_exit:
                break
            await self.on_tick(0)
            await asyncio.sleep(0.02)
        self.config.timeout_graceful_shutdown = math.ceil(self._parts.settings.timeouts.drain_s)
        await super().shutdown(sockets)


def make_server(
    app: Starlette, settings: RouterSettings, on_ready: Callable[[], None] = lambda: None
) -> RouterServer:
    """A server for the router. On SIGTERM it is a lame duck for `timeouts.lame_duck_s`, lets requests
    end for `timeouts.drain_s`, and then cuts them."""
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
    )
    return RouterServer(config, app.state.parts, on_ready)


async def serve_forever(
    app: Starlette,
    settings: RouterSettings,
    listener: socket.socket,
    reloader: Reloader,
    *,
    on_ready: Callable[[], None] = lambda: None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, and drain. SIGHUP has the configuration read again."""
    host, port = listener.getsockname()[:2]
    logger.info("listening on http://%s:%d", f"[{host}]" if ":" in host else host, port)
    reloads: set[asyncio.Task[Reloaded]] = set()

    def reload() -> None:
        task = asyncio.create_task(reloader.reload(), name="reload")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    await make_server(app, settings, on_ready).serve(sockets=[listener])
