"""Processes of a benchmark: started, waited for, and what they have used since."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


def free_ports(count: int) -> list[int]:
    """Loopback ports nobody listens on now."""
    listeners = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(listener.getsockname()[1]) for listener in listeners]
    for listener in listeners:
        listener.close()
    return ports


class Server:
    """A process with its children, in a group of its own; what it prints goes to a file."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        port: int,
        log: Path,
        *,
        ready: str = "/health",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.port = port
        self._ready = f"http://127.0.0.1:{port}{ready}"
        self._log = log
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env={**os.environ, **(environment or {})},
            )

    def wait_until_ready(self, timeout_s: float = 90.0) -> None:
        """Return once it answers.

        Raises:
            RuntimeError: it ended, or took too long; with the end of what it printed.
        """
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._process.poll() is not None:
                raise RuntimeError(f"{self.name} ended: {self._said()}")
            with suppress(OSError, urllib.error.URLError):
                urllib.request.urlopen(self._ready, timeout=2).close()
                return
            time.sleep(0.1)
        raise RuntimeError(f"{self.name} does not answer {self._ready}: {self._said()}")

    def stop(self) -> None:
        """End it and its children."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(3.0)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process alone."""
        self._process.send_signal(number)

    def metric(self, name: str) -> float:
        """Sum of a metric on its page over all labels; 0 where there is none."""
        url = f"http://127.0.0.1:{self.port}/metrics"
        with urllib.request.urlopen(url, timeout=60) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        samples = (sample for family in families for sample in family.samples)
        return float(sum(sample.value for sample in samples if sample.name == name))

    @property
    def cpu_s(self) -> float:
        """Processor time of it and all its children so far, those that ended included."""
        return _TICK_S * sum(
            sum(int(field) for field in fields[11:15]) for fields in map(_fields, self._tree())
        )

    @property
    def own_cpu_s(self) -> float:
        """Processor time of the process without its children; not in ticks of 10 ms, but exact."""
        return time.clock_gettime(~self._process.pid << 3 | 2)  # as clock_getcpuclockid(3) has it

    @property
    def rss_mb(self) -> float:
        """Memory of it and its children now, in MB."""
        page = os.sysconf("SC_PAGE_SIZE")
        return sum(int(fields[21]) for fields in map(_fields, self._tree())) * page / 1e6

    def _tree(self) -> list[int]:
        found, todo = [], [self._process.pid]
        while todo:
            pid = todo.pop()
            found.append(pid)
            for task in Path(f"/proc/{pid}/task").glob("*/children"):
                with suppress(OSError):
                    todo += [int(child) for child in task.read_text().split()]
        return found

    def _said(self) -> str:
        return self._log.read_text(errors="replace")[-800:]


def serving(stack: ExitStack, name: str, command: Sequence[str], port: int, directory: Path) -> Server:
    """A server that answers by now, with one thread for its numbers; stopped with the stack.

    Args:
        directory: of the file that it prints to.
    """
    environment = {"OMP_NUM_THREADS": "1"}
    server = Server(name, command, port, directory / f"{name}.out", environment=environment)
    stack.callback(server.stop)
    server.wait_until_ready()
    return server


def _fields(pid: int) -> list[str]:
    """Of /proc/PID/stat, from the state on; zeros if it has just ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ["0"] * 50
