"""Where a rehearsal takes place: emulated backends, one router, a registry; all on loopback."""

from __future__ import annotations

import asyncio
import os
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from steersman.agents.guard import GuardSettings
from steersman.agents.registry import CHALLENGER, Registry
from steersman.agents.registry_watch import RegistryWatch
from steersman.env.scenario import load_source, saturation_of
from steersman.serving.canary.commands import Command, change_for
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.state import CanaryState, Phase, read_state
from steersman.serving.canary.store import FileStore
from steersman.serving.config import RouterSettings
from steersman.serving.drill.settings import RehearsalSettings
from steersman.serving.rehearsal.children import Children
from steersman.serving.rehearsal.stage import Stage, choose_stage, router_settings, warm_up
from steersman.serving.replay import ReplaySettings, replay, service_levels
from steersman.serving.replay_result import ReplayResult
from steersman.traces.arrivals import block_bootstrap, scale_tokens
from steersman.traces.errors import BackendError
from steersman.traces.outcome_log import read_outcomes
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.scenario import Scenario
from steersman.traces.settings import parse_settings
from steersman.traces.trace import Trace

ROUTER = "router"
WAIT_S = 60.0
"""For what a router does by itself within seconds, on a machine with other things to do."""
LOOK_S = 0.1
FLUSH_S = 2.0
"""Until the outcome log has what has just ended."""

Progress = Callable[[int, int], None]
Bars = Callable[[str, int], AbstractContextManager[Progress]]
"""Shows how far an act is; called with its name and its requests."""


class Site:
    """Everything that a rehearsal needs around it.

    Args:
        scenario: that of the settings, its saturation measured.
        directory: of configurations, logs, the registry and the outcome log.
        children: in which processes are started; gone when it closes.
    """

    def __init__(
        self, settings: RehearsalSettings, scenario: Scenario, directory: Path, children: Children
    ) -> None:
        self.settings = settings
        self.directory = directory.resolve()
        self._children = children
        self.registry = Registry(self.directory / "mlruns")
        self.rate_rps = settings.load * saturation_of(scenario, "evaluation")
        source = load_source(scenario, "evaluation")
        self._source = scale_tokens(source, output_factor=settings.output_factor)
        self.stage: Stage = choose_stage(
            scenario, settings.scenario, self.directory, self.registry.champion_directory
        )
        self.canary = FileStore(self.directory / "canary.json")
        self._options = CanarySettings()
        self._name = ROUTER
        self.log = self.directory / "outcomes"

    def start_backends(self) -> None:
        """All replicas of the scenario, in one process."""
        stage = self.stage
        self._children.start(
            "backends",
            *("emulate", "--scenario", stage.scenario_source, "--base-port", str(stage.first_port)),
            *("--stream-interval", str(self.settings.stream_interval)),
            ready=tuple(f"{url}/health" for url in stage.backend_urls),
        )

    @contextmanager
    def router(
        self,
        guard: GuardSettings,
        name: str = ROUTER,
        *,
        sections: Mapping[str, Any] | None = None,
    ) -> Iterator[int]:
        """A router in front of the backends; yields its process id.

        Args:
            guard: of champion and challenger alike.
            sections: those that differ from the rehearsal's configuration.
        """
        path = self.directory / f"{name}.yaml"
        values = self._configuration(guard) | dict(sections or {})
        path.write_text(yaml.safe_dump(values, sort_keys=False), "utf-8")
        self._options = parse_settings(values, RouterSettings, source=str(path)).canary
        self._name = name
        self._children.start(name, "serve", "--config", str(path), ready=(f"{self.url}/health",))
        try:
            yield self._children.pid(name)
        finally:
            self._children.stop(name)

    @property
    def url(self) -> str:
        """Of the router."""
        return self.stage.router_url

    def trace(self, requests: int, seed: int) -> Trace:
        """So many requests of the scenario's own traffic, at the rehearsal's rate."""
        duration_s = 1.2 * requests / self.rate_rps + 30.0
        drawn = block_bootstrap(
            self._source, rate_rps=self.rate_rps, duration_s=duration_s, seed=seed, block_s=10.0
        )
        return drawn.select(range(min(requests, len(drawn))))

    def play(self, trace: Trace, on_progress: Progress | None = None) -> ReplayResult:
        """Send it through the router, and wait for the end."""
        profiles = [spec.profile for spec in self.stage.scenario.replicas]
        slo = service_levels(trace, profiles)
        settings = ReplaySettings(url=self.url)
        return asyncio.run(replay(trace, settings, slo=slo, on_progress=on_progress))

    def warm_up(self, trace: Trace) -> None:
        """A few requests that nothing counts: connections open, code and models loaded."""
        asyncio.run(replay(warm_up(trace), ReplaySettings(url=self.url)))

    def change_hardware(self, slowdowns: tuple[float, ...]) -> None:
        """From now on replicas take so many times as long; nobody is told."""
        for url, factor in zip(self.stage.backend_urls, slowdowns, strict=False):
            body = b'{"slowdown": %f}' % factor
            request = urllib.request.Request(f"{url}/emulator/faults", data=body)  # noqa: S310
            with urllib.request.urlopen(request, timeout=WAIT_S):  # noqa: S310 (our own child)
                pass

    def records(self, since_unix_s: float = 0.0) -> list[OutcomeRecord]:
        """What the router has logged of requests that came since."""
        time.sleep(FLUSH_S)
        return [r for r in read_outcomes(self.log) if r.arrival_unix_s >= since_unix_s]

    def metric(self, name: str, **labels: str) -> float:
        """Sum of a metric of the router over all series with these labels; 0 without any."""
        found: float = sum(
            sample.value
            for sample in self._samples()
            if sample.name == name and labels.items() <= sample.labels.items()
        )
        return found

    def serves(self) -> str:
        """Version of the bundle that the router serves; empty for none."""
        for sample in self._samples():
            if sample.name == "steersman_bundle_info" and sample.value == 1.0:
                return str(sample.labels["version"])
        return ""

    def wait(self, what: str, reached: Callable[[], bool]) -> float:
        """Until something is so; how long that took, in seconds.

        Raises:
            BackendError: it is not so after `WAIT_S`.
        """
        began_s = time.monotonic()
        while not reached():
            if time.monotonic() - began_s > WAIT_S:
                log = self._children.log(self._name)
                raise BackendError(f"{what} did not happen within {WAIT_S:g} s; see {log}")
            time.sleep(LOOK_S)
        return time.monotonic() - began_s

    def follow(self, watch: RegistryWatch) -> None:
        """Have the registry's worker look, and the router take up what it brings."""
        watch.step()
        champion = self.registry.served.bundle("champion")
        if champion is not None:
            self.wait(f"serving {champion.version}", lambda: self.serves() == champion.version)
        challenger = self.registry.served.bundle(CHALLENGER)
        if challenger is not None:
            self.wait(
                f"looking on of {challenger.version}",
                lambda: self.metric("steersman_shadow_info", version=challenger.version) == 1.0,
            )

    def canary_state(self) -> CanaryState:
        """Where the canary is."""
        try:
            return read_state(self.canary.path.read_bytes())
        except FileNotFoundError:
            return CanaryState()

    def canary_runs(self) -> bool:
        """Whether a challenger has traffic that it may lose again."""
        return self.canary_state().phase in {Phase.RUNNING, Phase.PROMOTED}

    def move_canary(self, command: Command, by: str) -> None:
        """As `steersman canary` does."""
        change = change_for(command, self._options, by=by, reason=by, now_unix_s=time.time())
        self.canary.update_now(change)

    def cpu_s(self, pid: int) -> float:
        """Processor time of a process so far."""
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _samples(self) -> Iterator[Any]:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=WAIT_S) as page:  # noqa: S310
            text = page.read().decode()
        for family in text_string_to_metric_families(text):
            yield from family.samples

    def _configuration(self, guard: GuardSettings) -> dict[str, Any]:
        settings, served = self.settings, self.registry.served
        challenger = str(served.directory(CHALLENGER))
        common = router_settings(self.stage, "learned")
        # On a machine that does other things too, a decision may be kept waiting for a processor.
        common["bundle"] |= {"watch_interval_s": 0.2, "latency_budget_ms": 0}
        common["guard"] = guard.model_dump(mode="json")
        return common | {
            "outcome_log": {"directory": str(self.log)},
            "shadow": {
                "enabled": True,
                "challengers": [challenger],
                "watch_interval_s": 0.2,
                "most_cpu": 0.3,
            },
            "canary": {
                "enabled": True,
                "challenger": {"bundle": challenger},
                "start": "manual",
                "shares": list(settings.shares),
                "hold_s": settings.hold_s,
                "least_requests": settings.least_requests,
                "interval_s": 0.5,
                "split": "request",
                "state_file": str(self.canary.path),
                "evidence_directory": str(served.root),
            },
        }
