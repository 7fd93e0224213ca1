"""Real processes on loopback, shared by the end-to-end tests: three emulated backends and a router."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from tests.support.processes import ServerProcess, free_port, serving

PROFILES = ("h100-llama-3.1-8b", "a100-llama-3.1-8b", "l40s-llama-3.1-8b")
MODEL = "llama-3.1-8b"
HEALTH_INTERVAL_S = 0.3


class Backends:
    """Emulated replicas that can be killed and started again, each on its port."""

    def __init__(self) -> None:
        self.ids = [profile.split("-")[0] for profile in PROFILES]
        ports = [free_port() for _ in PROFILES]
        self.urls = [f"http://127.0.0.1:{port}" for port in ports]
        self._commands = [
            ("emulate", "--profile", profile, "--port", str(port), "--replica-id", name)
            for profile, port, name in zip(PROFILES, ports, self.ids, strict=True)
        ]
        self._processes: list[ServerProcess | None] = [None] * len(PROFILES)
        # The first compiles the engine if need be; the others then find it on disk.
        self.start(0)
        for index in range(1, len(PROFILES)):
            self._launch(index)
        for index in range(1, len(PROFILES)):
            self.start(index)

    def start(self, index: int) -> None:
        """Start a replica that does not run, and wait until it is ready."""
        self._launch(index).wait_until_ready(self.urls[index])

    def kill(self, index: int) -> None:
        """As a crash would."""
        process = self._processes[index]
        assert process is not None
        process.kill()
        process.close()
        self._processes[index] = None

    def freeze(self, index: int) -> None:
        """It takes connections and does nothing."""
        process = self._processes[index]
        assert process is not None
        process.freeze()

    def thaw(self, index: int) -> None:
        """It goes on."""
        process = self._processes[index]
        assert process is not None
        process.thaw()

    def close(self) -> None:
        running = [process for process in self._processes if process is not None]
        for process in running:
            process.thaw()
            process.terminate()
        for process in running:
            process.close()

    def _launch(self, index: int) -> ServerProcess:
        process = self._processes[index]
        if process is None:
            process = self._processes[index] = ServerProcess(*self._commands[index])
        return process


@dataclass
class Router:
    url: str
    process: ServerProcess


@pytest.fixture(scope="session")
def backends() -> Iterator[Backends]:
    started = Backends()
    yield started
    started.close()


def router_config(backends: Backends, **sections: object) -> dict[str, object]:
    """A configuration that notices failures fast."""
    entries = [
        {"url": url, "id": name, "profile": profile}
        for url, name, profile in zip(backends.urls, backends.ids, PROFILES, strict=True)
    ]
    health = {"interval_s": HEALTH_INTERVAL_S, "timeout_s": 1.0}
    return {"backends": entries, "health": health, "policy": {"name": "p2c"}, **sections}


@pytest.fixture(scope="session")
def router(backends: Backends, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Router]:
    config = tmp_path_factory.mktemp("router") / "router.yaml"
    with serve_router(config, router_config(backends)) as started:
        yield started


@contextmanager
def serve_router(path: Path, config: dict[str, object]) -> Iterator[Router]:
    """Run `steersman serve` with a configuration while the block lasts."""
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serving("serve", "--config", str(path), "--port", str(port), url=url) as process:
        yield Router(url, process)
