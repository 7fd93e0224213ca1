"""A real MLflow server on loopback that can be stopped and started again."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.processes import READY_TIMEOUT_S, free_port

_QUIET = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
"""No reports, and none of the eight processes that wait for jobs which nobody here gives them."""


class MlflowServer:
    """Runs, registry and artifacts in a folder; they survive a restart."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        log = (self.root / "server.log").open("ab")
        self._process = subprocess.Popen(
            [
                *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1"),
                *("--port", str(self.port), "--workers", "1"),
                *("--backend-store-uri", f"sqlite:///{self.root / 'server.db'}"),
                *("--artifacts-destination", str(self.root / "artifacts")),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, **_QUIET},
        )
        log.close()
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not self._answers():
            assert self._process.poll() is None, (self.root / "server.log").read_text()
            assert time.monotonic() < deadline_s, "the MLflow server did not start"
            time.sleep(0.1)

    def stop(self) -> None:
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10.0)
            self._process = None

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.uri}/health", timeout=2.0) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False


@contextmanager
def mlflow_server(root: Path) -> Iterator[MlflowServer]:
    """A server while the block lasts."""
    server = MlflowServer(root)
    try:
        server.start()
        yield server
    finally:
        server.stop()
