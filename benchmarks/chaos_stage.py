"""The processes of `chaos.py`: emulated backends and a router, and what is done to them."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import aiohttp
import yaml

from steersman.serving.rehearsal.children import Children, free_ports

PROFILES = ("h100-llama-3.1-8b", "a100-llama-3.1-8b", "a100-llama-3.1-8b", "l40s-llama-3.1-8b")
WORKERS = 2
TMPFS_BYTES = 64 * 2**20


class Stage:
    """Backends r0, r1, … and one router, on free ports of loopback.

    Args:
        children: starts the processes.
        directory: for the configuration.
        log: directory of the outcome log.
    """

    def __init__(self, children: Children, directory: Path, log: Path) -> None:
        self._children = children
        first = free_ports(len(PROFILES) + 1)
        self._ports = range(first, first + len(PROFILES))
        self._config = directory / "router.yaml"
        self.log = log
        self.url = f"http://127.0.0.1:{first + len(PROFILES)}"
        self._router_port = first + len(PROFILES)

    def start(self) -> None:
        """Start everything, and wait until it serves."""
        self.start_backend(0)  # it compiles the engine, if need be; the others find that on disk
        with ThreadPoolExecutor() as pool:
            list(pool.map(self.start_backend, range(1, len(PROFILES))))
        self.configure()
        self._children.start(
            "router", "serve", "--config", str(self._config), ready=(f"{self.url}/ready",)
        )

    def stop_router(self) -> None:
        """As a supervisor does; its log is complete then."""
        self._children.stop("router")

    def start_backend(self, index: int) -> None:
        """Start one, and wait until it is ready."""
        port = self._ports[index]
        options = ("--profile", PROFILES[index], "--port", str(port), "--stream-interval", "4")
        ready = (f"http://127.0.0.1:{port}/health",)
        self._children.start(f"r{index}", "emulate", *options, "--replica-id", f"r{index}", ready=ready)

    def signal_backend(self, index: int, number: signal.Signals) -> None:
        """To the whole process group: SIGKILL is a crash, SIGSTOP a freeze."""
        with suppress(ProcessLookupError):
            os.killpg(self._children.pid(f"r{index}"), number)
        if number is signal.SIGKILL:
            self._children.stop(f"r{index}")

    def configure(self, *, without: int | None = None, broken: bool = False) -> None:
        """Write the router's configuration."""
        backends = [
            {"id": f"r{i}", "url": f"http://127.0.0.1:{port}", "profile": PROFILES[i]}
            for i, port in enumerate(self._ports)
            if i != without
        ]
        values: dict[str, Any] = {
            "port": self._router_port,
            "workers": WORKERS,
            # A lame duck for longer than the clients keep idle connections; and patience with oneself,
            # on two cores that a dozen processes share.
            "timeouts": {"lame_duck_s": 2.0, "connect_s": 10.0},
            "health": {"timeout_s": 5.0},
            "backends": backends,
            "outcome_log": {
                "directory": str(self.log),
                "segment_bytes": 2**20,
                "total_bytes": TMPFS_BYTES - 2 * 2**20,
            },
        }
        text = "backends: [" if broken else yaml.safe_dump(values)
        self._config.write_text(text, encoding="utf-8")

    def signal_router(self, number: signal.Signals) -> None:
        """To the router alone."""
        os.kill(self._children.pid("router"), number)

    async def faults(self, index: int, **faults: Any) -> None:
        """Break a backend on purpose; nothing heals."""
        url = f"http://127.0.0.1:{self._ports[index]}/emulator/faults"
        async with aiohttp.ClientSession() as session, session.post(url, json=faults) as answer:
            answer.raise_for_status()

    async def metrics(self) -> str:
        """The router's page."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            return await answer.text()

    async def fill_disk(self) -> Path:
        """Leave no byte where the log is; returns what to delete."""
        ballast = self.log.parent / f"ballast-{time.monotonic_ns()}"

        def fill() -> None:
            with suppress(OSError), ballast.open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(2**16))
            with suppress(OSError), ballast.open("ab", buffering=0) as file:
                while True:
                    file.write(b"\0")

        await asyncio.to_thread(fill)
        return ballast


@contextmanager
def small_disk() -> Iterator[tuple[Path, bool]]:
    """A directory that can be filled up, and whether it can: mounting a tmpfs takes the right to."""
    directory = Path(tempfile.mkdtemp(prefix="steersman-chaos-"))
    mount = ["mount", "-t", "tmpfs", "-o", f"size={TMPFS_BYTES}", "tmpfs", str(directory)]
    try:
        mounted = (
            shutil.which("mount") is not None
            and not subprocess.run(mount, capture_output=True, check=False).returncode
        )
        try:
            yield directory, mounted
        finally:
            if mounted:
                subprocess.run(["umount", str(directory)], capture_output=True, check=False)
    finally:
        shutil.rmtree(directory, ignore_errors=True)
