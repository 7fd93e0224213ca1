"""All replicas of a scenario, each an emulated backend in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from types import TracebackType

import yaml

from steersman.env.emulator.server import GRACE_S, bind
from steersman.env.emulator.settings import EmulatorSettings
from steersman.env.profiles import ProfileSettings
from steersman.traces.errors import BackendError
from steersman.traces.scenario import ReplicaSpec, Scenario
from steersman.traces.schema import HardwareProfile

READY_TIMEOUT_S = 180.0
POLL_S = 0.05


@dataclass(frozen=True, slots=True)
class Member:
    """One replica of the fleet, as people and configurations name it."""

    id: str
    url: str
    profile: str
    model: str


class Fleet:
    """Starts the replicas, watches them, and takes them along when it ends. A context manager.

    A replica that dies is not restarted: killing one is what rehearsals are for.
    """

    def __init__(
        self, scenario: Scenario, common: EmulatorSettings, *, host: str, base_port: int
    ) -> None:
        """Nothing is started yet.

        Args:
            common: what all replicas share: model, seed (the first's), speed, stream interval; the
                rest comes from the scenario.

        Raises:
            ConfigError: a port is taken or does not exist.
        """
        for index in range(len(scenario.replicas)):
            bind(host, base_port + index).close()
        self._scenario = scenario
        self._folder = tempfile.TemporaryDirectory(prefix="steersman-emulate-")
        self._common = common
        self._host = host
        self._children: dict[str, subprocess.Popen[bytes]] = {}
        self.members: list[Member] = []
        self._commands: dict[str, list[str]] = {}
        for index, spec in enumerate(scenario.replicas):
            port = base_port + index
            self.members.append(
                Member(
                    spec.replica_id,
                    f"http://{host}:{port}",
                    spec.profile.name,
                    common.model or spec.profile.model.name,
                )
            )
            self._commands[spec.replica_id] = self._command(index, spec, port)

    def __enter__(self) -> Fleet:
        try:
            self._start()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop()

    def watch(self, on_death: Callable[[Member, int], None], until: Callable[[], bool]) -> None:
        """Wait for `until()`, or until no replica is left; `on_death` gets each that ended by itself."""
        alive = {member.id: member for member in self.members}
        while alive and not until():
            for name, member in list(alive.items()):
                status = self._children[name].poll()
                if status is not None:
                    del alive[name]
                    if not until():
                        on_death(member, status)
            time.sleep(POLL_S)

    def _command(self, index: int, spec: ReplicaSpec, port: int) -> list[str]:
        profile = write_profile(spec.profile, Path(self._folder.name) / spec.replica_id)
        command = [sys.executable, "-m", "steersman", "emulate", "--exit-with-stdin"]
        command += ["--profile", str(profile), "--port", str(port), "--replica-id", spec.replica_id]
        command += ["--host", self._host, "--slowdown", str(spec.slowdown)]
        command += ["--seed", str(self._common.seed + index), "--speed", str(self._common.speed)]
        command += ["--stream-interval", str(self._common.stream_interval)]
        if self._common.model:
            command += ["--model", self._common.model]
        if not (self._scenario.prefix_cache and self._common.prefix_cache):
            command.append("--no-prefix-cache")
        return command

    def _start(self) -> None:
        first, *others = self.members
        # The first compiles the engine if need be; the others then find it on disk.
        self._launch(first)
        self._wait_ready(first)
        for member in others:
            self._launch(member)
        for member in others:
            self._wait_ready(member)

    def _launch(self, member: Member) -> None:
        # The pipe closes when this process ends, however it ends, and the child stops with it.
        self._children[member.id] = subprocess.Popen(
            self._commands[member.id], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL
        )

    def _wait_ready(self, member: Member) -> None:
        deadline_s = time.monotonic() + READY_TIMEOUT_S
        while not _healthy(member.url):
            status = self._children[member.id].poll()
            if status is not None:
                raise BackendError(f"emulated replica {member.id} ended with status {status} at start")
            if time.monotonic() > deadline_s:
                raise BackendError(f"{member.url}: not ready after {READY_TIMEOUT_S:g} s")
            time.sleep(POLL_S)

    def _stop(self) -> None:
        for child in self._children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
        deadline_s = time.monotonic() + GRACE_S + 5.0
        for child in self._children.values():
            with suppress(subprocess.TimeoutExpired):
                child.wait(max(deadline_s - time.monotonic(), 0.1))
            child.kill()
            child.wait()
            if child.stdin is not None:
                child.stdin.close()
        self._folder.cleanup()


def write_profile(profile: HardwareProfile, folder: Path) -> Path:
    """A profile and its model as files that `load_profile` reads, whatever files they came from."""
    folder.mkdir()
    model = folder / "model.yaml"
    model.write_text(yaml.safe_dump(asdict(profile.model)), encoding="utf-8")
    path = folder / "profile.yaml"
    settings = ProfileSettings.model_validate({**asdict(profile), "model": str(model)})
    path.write_text(yaml.safe_dump(settings.model_dump(mode="json")), encoding="utf-8")
    return path


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=2.0) as response:  # noqa: S310 (our own)
            return bool(response.status == 200)
    except (OSError, urllib.error.URLError):
        return False
