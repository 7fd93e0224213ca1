"""Child processes on loopback: emulated backends and a router, as a user would start them.

Each child is a real `steersman` command in a process group of its own, with its output in a log file.
All of them are gone when `Children` closes, also after an error or Ctrl-C.
"""

from __future__ import annotations

import os
import secrets
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from steersman.traces.errors import BackendError

READY_TIMEOUT_S = 120.0
"""A first start compiles the engine; a busy machine takes its time over it."""
STOP_TIMEOUT_S = 15.0
POLL_S = 0.05
LOG_LINES_SHOWN = 3
LEAST_PORT, MOST_PORT = 10_000, 32_000


class Children:
    """Starts and stops children. Use as a context manager.

    Args:
        log_directory: where each child's output goes, one `<name>.log` each.
    """

    def __init__(self, log_directory: Path) -> None:
        self._logs = log_directory
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Children:
        self._logs.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in reversed(list(self._children)):
            self.stop(name)

    def start(self, name: str, *args: str, ready: tuple[str, ...]) -> None:
        """Start `steersman *args` and wait until every URL in `ready` answers 200.

        Raises:
            BackendError: it ended, or did not get ready in time; quotes the end of its log.
        """
        with self.log(name).open("wb") as log:
            self._children[name] = subprocess.Popen(
                [sys.executable, "-m", "steersman", *args],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        for url in ready:
            while not _answers(url):
                self._expect_alive(name)
                if time.monotonic() > deadline_s:
                    raise BackendError(
                        f"{name}: {url} not ready after {READY_TIMEOUT_S:g} s; see {self.log(name)}"
                    )
                time.sleep(POLL_S)

    def stop(self, name: str) -> None:
        """Ask a child to stop, insist if it does not, and take its children with it."""
        child = self._children.pop(name)
        if child.poll() is None:
            child.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                child.wait(STOP_TIMEOUT_S)
        with suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()

    def pid(self, name: str) -> int:
        """A child's process id, and that of its group."""
        return self._children[name].pid

    def log(self, name: str) -> Path:
        """Where a child's output is."""
        return self._logs / f"{name}.log"

    def _expect_alive(self, name: str) -> None:
        status = self._children[name].poll()
        if status is None:
            return
        lines = self.log(name).read_text(encoding="utf-8", errors="replace").split("\n")
        said = " | ".join([line.strip() for line in lines if line.strip()][-LOG_LINES_SHOWN:])
        raise BackendError(f"{name}: ended with status {status} before it was ready: {said}")


def free_ports(count: int) -> int:
    """The first of `count` consecutive loopback ports nobody listens on now.

    From below those that systems hand out to connections (from 32768 on Linux): another process's next
    connection would take one of these before it is listened on.
    """
    for _ in range(100):
        first = LEAST_PORT + secrets.randbelow(MOST_PORT - LEAST_PORT - count)
        if all(_is_free(port) for port in range(first, first + count)):
            return first
    raise BackendError(f"no {count} consecutive free ports on loopback; stop some servers")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2.0) as response:  # noqa: S310 (our own URLs)
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False
