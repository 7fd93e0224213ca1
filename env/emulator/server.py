"""Runs one emulated backend as a server process."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn

from steersman.env.emulator.app import create_backend
from steersman.env.emulator.settings import EmulatorSettings
from steersman.traces.errors import ConfigError

GRACE_S = 3
"""Answers in flight may go on for so long after SIGTERM or SIGINT; then they are cut."""


def serve(
    settings: EmulatorSettings,
    *,
    host: str,
    port: int,
    on_ready: Callable[[str], None],
    exit_with_stdin: bool = False,
) -> None:
    """Serve until SIGTERM or SIGINT.

    Args:
        port: 0 takes any free one.
        on_ready: called with the URL when requests are answered.
        exit_with_stdin: also stop when standard input ends, as it does when the parent process is gone.

    Raises:
        ConfigError: unknown profile, or the address cannot be bound.
    """
    app = create_backend(settings)
    listener = bind(host, port)
    bound_port = int(listener.getsockname()[1])
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="on",
        access_log=False,
        log_level="warning",
        timeout_keep_alive=75,
        timeout_graceful_shutdown=GRACE_S,
    )
    server = _Server(
        config, lambda: on_ready(f"http://{host}:{bound_port}"), exit_with_stdin=exit_with_stdin
    )
    with listener:
        server.run(sockets=[listener])


def bind(host: str, port: int) -> socket.socket:
    """A listening address, before anything slow is done.

    Raises:
        ConfigError: it is taken, or not of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise ConfigError(f"{host}:{port}: cannot be bound ({error}); choose another port") from None
    return listener


class _Server(uvicorn.Server):
    """Tells when it is ready, and ends with status 0 when asked to stop."""

    def __init__(
        self, config: uvicorn.Config, on_ready: Callable[[], None], *, exit_with_stdin: bool
    ) -> None:
        super().__init__(config)
        self._on_ready = on_ready
        self._exit_with_stdin = exit_with_stdin

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Bind and begin; a lifespan that failed has been logged and ends the server."""
        await super().startup(sockets)
        if self.should_exit or not self.started:
            return
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        if self._exit_with_stdin:
            loop.add_reader(sys.stdin.fileno(), self._read_stdin)
        self._on_ready()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The base class raises the signal again after the shutdown; we end well instead.

        Until `startup` is through there is no answer to finish, and Ctrl-C ends the process at once: an
        interrupted lifespan would be logged as a failure, and compiling cannot be interrupted.
        """
        signal.signal(signal.SIGINT, lambda *_: os._exit(130))
        yield

    def _read_stdin(self) -> None:
        if not os.read(sys.stdin.fileno(), 1024):
            asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
            self.should_exit = True
