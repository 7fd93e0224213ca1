"""Real processes for tests: start a `steersman` command, wait until it serves, read its log, kill it.

::

    with serving("emulate", "--port", str(port), url=f"http://127.0.0.1:{port}") as backend:
        ...
        backend.kill()  # as a crash would
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

COMMAND = (sys.executable, "-c", "from steersman.cli import main; main()")
"""The command-line tool, without relying on where its script was installed."""

READY_TIMEOUT_S = 120.0
"""Generous: a first start on a busy machine compiles the engine."""


def free_port() -> int:
    """A loopback port nobody listens on now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def free_ports(count: int) -> list[int]:
    """`count` consecutive loopback ports nobody listens on now."""
    for _ in range(100):
        first = free_port()
        if first + count < 65_536 and all(_is_free(port) for port in range(first, first + count)):
            return list(range(first, first + count))
    raise RuntimeError(f"no {count} consecutive free ports")


def run_cli(
    *args: str, timeout_s: float = 120.0, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a `steersman` command to its end and collect its output."""
    return subprocess.run(
        [*COMMAND, *args],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        env=_environment(None),
        cwd=cwd,
    )


class ServerProcess:
    """A `steersman` command in a process group of its own, its output in a file."""

    def __init__(
        self, *args: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> None:
        self.args = args
        self._log = tempfile.NamedTemporaryFile(prefix=f"steersman-{args[0]}-", suffix=".log")  # noqa: SIM115
        self._process = subprocess.Popen(
            [*COMMAND, *args],
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=_environment(env),
            cwd=cwd,
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status; None while it runs."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """Everything it printed so far."""
        return Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def wait_until_ready(
        self, url: str, *, path: str = "/health", timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Return once `url + path` answers 200; fail with the log if it dies or takes too long."""
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            if self.returncode is not None:
                raise AssertionError(f"{self.args} exited with {self.returncode}:\n{self.log}")
            if answers_ok(url + path):
                return
            time.sleep(0.05)
        raise AssertionError(f"{self.args}: {url}{path} not ready after {timeout_s} s:\n{self.log}")

    def wait(self, timeout_s: float = 30.0) -> int:
        """Wait for its end; its exit status."""
        return self._process.wait(timeout_s)

    def interrupt(self) -> None:
        """As Ctrl-C does."""
        self._process.send_signal(signal.SIGINT)

    def terminate(self) -> None:
        """As a supervisor asks it to stop."""
        self._process.terminate()

    def reload(self) -> None:
        """As an operator has it read its configuration again."""
        self.signal(signal.SIGHUP)

    def signal(self, number: signal.Signals) -> None:
        """To this process alone."""
        self._process.send_signal(number)

    def freeze(self) -> None:
        """As a machine that swaps, or a driver that hangs: it takes connections and does nothing."""
        os.killpg(self._process.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """It goes on where it was."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGCONT)

    def kill(self) -> None:
        """As a crash: SIGKILL to the whole group, at once and for good."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(10.0)

    def close(self) -> None:
        """Stop it, politely first, and drop its log."""
        if self.returncode is None:
            self.thaw()
            self.terminate()
            with suppress(subprocess.TimeoutExpired):
                self.wait(10.0)
        self.kill()
        self._log.close()


@contextmanager
def serving(
    *args: str,
    url: str,
    path: str = "/health",
    timeout_s: float = READY_TIMEOUT_S,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Iterator[ServerProcess]:
    """Run a serving command, ready when the block begins and gone when it ends."""
    process = ServerProcess(*args, env=env, cwd=cwd)
    try:
        process.wait_until_ready(url, path=path, timeout_s=timeout_s)
        yield process
    finally:
        process.close()


def answers_ok(url: str, *, timeout_s: float = 5.0) -> bool:
    """Whether a GET of `url` answers 200."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def _is_free(port: int) -> bool:
    with socket.socket() as listener:
        try:
            listener.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **(extra or {})}
