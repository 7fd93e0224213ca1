"""The stage of a rehearsal: emulated backends of a scenario, and a router per policy in front."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from steersman.serving.rehearsal.children import Children, free_ports
from steersman.serving.replay import ReplaySettings, replay, service_levels
from steersman.serving.replay_result import ReplayResult
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

WARM_UP_REQUESTS = 12
"""Sent, and not counted, before a replay: connections open, caches of code and models warm."""
WARM_UP_TOKENS = 16
"""Longest answer to one of them: nobody should have to wait for more."""

DECISION_DEADLINE_MS = 50

Progress = Callable[[int, int], None]
"""Called with (requests ended, of those not ended well)."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a rehearsal plays.

    Args:
        scenario: its replicas are emulated.
        scenario_source: name or path that `steersman emulate --scenario` takes.
        directory: of configurations, logs and outcome logs.
        bundle: directory of trained models; the learned policy needs it.
        first_port: of the backends; the router takes the one after the last.
    """

    scenario: Scenario
    scenario_source: str
    directory: Path
    bundle: Path
    first_port: int

    @property
    def router_url(self) -> str:
        """Where the router listens."""
        return f"http://127.0.0.1:{self.first_port + len(self.scenario.replicas)}"

    @property
    def backend_urls(self) -> tuple[str, ...]:
        """Where the backends listen, in the order of the scenario's replicas."""
        ports = range(self.first_port, self.first_port + len(self.scenario.replicas))
        return tuple(f"http://127.0.0.1:{port}" for port in ports)

    def outcome_log(self, policy: str) -> Path:
        """Directory of a policy's outcome log."""
        return self.directory / "outcomes" / policy

    def router_config(self, policy: str) -> Path:
        """The router's configuration under a policy, as `write_router_config` writes it."""
        return self.directory / f"serve-{policy}.yaml"


def choose_stage(scenario: Scenario, source: str, directory: Path, bundle: Path) -> Stage:
    """A stage on free ports of loopback."""
    first_port = free_ports(len(scenario.replicas) + 1)
    return Stage(scenario, source, directory.resolve(), bundle.resolve(), first_port)


def write_router_config(stage: Stage, policy: str, **sections: Mapping[str, Any]) -> Path:
    """Write a `steersman serve` configuration for the stage; its path.

    Args:
        sections: those that are to be others than `router_settings` has.

    Raises:
        ConfigError: the directory cannot be written.
    """
    settings = router_settings(stage, policy) | sections
    path = stage.router_config(policy)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(yaml.safe_dump(settings, sort_keys=False), encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error}); choose another directory") from None
    return path


def router_settings(stage: Stage, policy: str) -> dict[str, Any]:
    """A `steersman serve` configuration for the stage."""
    return {
        "host": "127.0.0.1",
        "port": int(stage.router_url.rpartition(":")[2]),
        "backends": [
            {
                "url": url,
                "id": spec.replica_id,
                "profile": spec.profile.name,
                "max_num_seqs": spec.profile.max_num_seqs,
                "max_batched_tokens": spec.profile.max_batched_tokens,
            }
            for url, spec in zip(stage.backend_urls, stage.scenario.replicas, strict=True)
        ],
        "policy": {"name": policy},
        # Router, client and backends share the machine's cores: a decision may be kept waiting for one.
        "guard": {"deadline_ms": DECISION_DEADLINE_MS},
        "bundle": {"directory": str(stage.bundle)},
        "outcome_log": {"directory": str(stage.outcome_log(policy))},
    }


def start_backends(children: Children, stage: Stage) -> None:
    """Start every emulated backend; returns when all are ready."""
    children.start(
        "backends",
        "emulate",
        *("--scenario", stage.scenario_source, "--base-port", str(stage.first_port)),
        ready=tuple(f"{url}/health" for url in stage.backend_urls),
    )


def warm_up(trace: Trace) -> Trace:
    """The first requests with short answers, from a tenant whose history is nobody else's."""
    first = trace.select(range(min(WARM_UP_REQUESTS, len(trace))))
    return first.replace(
        output_tokens=np.minimum(first.output_tokens, WARM_UP_TOKENS),
        tenant=np.zeros_like(first.tenant),
        tenants=("warm-up",),
    )


def play(
    children: Children, stage: Stage, policy: str, trace: Trace, *, on_progress: Progress | None = None
) -> ReplayResult:
    """Put a router with the policy in front of the backends, and replay the trace through it.

    Raises:
        BackendError: the router did not start.
    """
    config = write_router_config(stage, policy)
    name = f"router-{policy}"
    children.start(name, "serve", "--config", str(config), ready=(f"{stage.router_url}/health",))
    try:
        settings = ReplaySettings(url=stage.router_url)
        asyncio.run(replay(warm_up(trace), settings))
        slo = service_levels(trace, [spec.profile for spec in stage.scenario.replicas])
        return asyncio.run(replay(trace, settings, slo=slo, on_progress=on_progress))
    finally:
        children.stop(name)
