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

from steersman.serving.admin.listener import admin_listening
from steersman.serving.config import RouterSettings
from steersman.serving.connection import protocol_of
from steersman.serving.parts import Parts
from steersman.serving.reload import Reloaded, Reloader
from steersman.serving.sockets import BACKLOG, listen

logger = logging.getLogger("steersman.serving")

LAST_TURNS = 25
"""Of 20 ms each, for connections that were taken last to send their request."""


def open_socket(settings: RouterSettings) -> socket.socket:
    """The public listening socket.

    Raises:
        ConfigError: the address is taken, or not this machine's.
    """
    return listen(settings.host, settings.port)


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
    )
    return RouterServer(config, app.state.parts, on_ready)


async def serve_forever(
    app: Starlette,
    settings: RouterSettings,
    listener: socket.socket,
    reloader: Reloader,
    *,
    on_ready: Callable[[], None] = lambda: None,
    operators: socket.socket | None = None,
) -> None:
    """Serve until SIGTERM or Ctrl-C, and drain. SIGHUP has the configuration read again. `operators` is
    the socket of their listener, if it is open already."""
    parts = app.state.parts
    _tell(listener, "listening on", secure=parts.tls is not None)
    reloads: set[asyncio.Task[Reloaded]] = set()

    def reload() -> None:
        task = asyncio.create_task(reloader.reload(), name="reload")
        reloads.add(task)
        task.add_done_callback(reloads.discard)

    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, reload)
    async with admin_listening(parts, reloader, operators) as admin_port:
        if admin_port is not None:
            logger.info("operators are listened to on http://%s:%d", settings.admin.host, admin_port)
        await make_server(app, settings, on_ready).serve(sockets=[listener])


def _tell(listener: socket.socket, what: str, *, secure: bool) -> None:
    host, port = listener.getsockname()[:2]
    scheme = "https" if secure else "http"
    logger.info("%s %s://%s:%d", what, scheme, f"[{host}]" if ":" in host else host, port)
