"""The queue over HTTP: real processes, emulated backends, the same arrivals with it and without.

::

    python benchmarks/queueing_http.py [--quick] [--json FILE]

The `demo` scenario's four replicas are emulated as first-come, first-served engines, `steersman serve`
stands before them, and a trace with classes P0 to P3 mixed 40 : 20 : 25 : 15 is replayed at 130 % load,
under `p2c` and `marginal-cost`; `--quick` takes one policy and half a minute.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from steersman.agents.evaluate.queueing import with_class_shares
from steersman.agents.queueing.settings import LEVELS
from steersman.env.scenario import load_scenario, load_source, make_trace
from steersman.serving.rehearsal.children import Children
from steersman.serving.rehearsal.stage import (
    Stage,
    choose_stage,
    start_backends,
    warm_up,
    write_router_config,
)
from steersman.serving.replay import ReplaySettings, replay, service_levels
from steersman.serving.replay_result import ReplayResult
from steersman.traces.trace import Trace

SCENARIO = "demo"
LOAD = 1.3
SEED = 7


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    scenario = load_scenario(SCENARIO)
    source = with_class_shares(load_source(scenario, "evaluation"))
    trace = make_trace(
        scenario,
        SEED,
        duration_s=30.0 if options.quick else 90.0,
        load=LOAD,
        split="evaluation",
        source=source,
    )
    rows: list[dict[str, Any]] = []
    print(f"{len(trace)} requests at {LOAD:.0%} load; p99 TTFT of P0..P3 in s")
    with tempfile.TemporaryDirectory() as place, Children(Path(place) / "logs") as children:
        stage = choose_stage(scenario, SCENARIO, Path(place), Path(place) / "bundle")
        start_backends(children, stage)
        for policy in ("p2c",) if options.quick else ("p2c", "marginal-cost"):
            for queue in ("none", "queue"):
                result = _play(children, stage, policy, trace, enabled=queue == "queue")
                rows += _rows(f"{queue}, {policy}", trace, result)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _play(children: Children, stage: Stage, policy: str, trace: Trace, *, enabled: bool) -> ReplayResult:
    config = write_router_config(stage, policy, queue={"enabled": enabled}, bundle={"directory": ""})
    name = f"router-{policy}-{'with' if enabled else 'without'}"
    children.start(name, "serve", "--config", str(config), ready=(f"{stage.router_url}/health",))
    try:
        sent = ReplaySettings(url=stage.router_url)
        asyncio.run(replay(warm_up(trace), sent))
        slo = service_levels(trace, [spec.profile for spec in stage.scenario.replicas])
        return asyncio.run(replay(trace, sent, slo=slo))
    finally:
        children.stop(name)


def _rows(name: str, trace: Trace, result: ReplayResult) -> list[dict[str, Any]]:
    values = {
        f"goodput_rps.{name}": (float(result.slo_met.sum() / trace.arrival_s[-1]), "1/s"),
        f"not_served.{name}": (float((~result.ok).mean()), "share"),
        f"client_lateness_p99_s.{name}": (float(np.quantile(result.lateness_s, 0.99)), "s"),
        f"longest_wait_s.{name}": (float(np.nanmax(result.ttft_s)), "s"),
    }
    for level in range(LEVELS):
        own = (trace.priority == level) & result.ok
        p99_s = float(np.quantile(result.ttft_s[own], 0.99)) if own.any() else float("nan")
        values[f"p99_ttft_s.P{level}.{name}"] = p99_s, "s"
        met = result.slo_met[trace.priority == level]
        values[f"slo_attainment.P{level}.{name}"] = float(met.mean()), "share"
    p99 = "".join(f"{values[f'p99_ttft_s.P{level}.{name}'][0]:8.2f}" for level in range(LEVELS))
    shown = [values[f"{key}.{name}"][0] for key in ("goodput_rps", "not_served", "longest_wait_s")]
    print(f"{name:<24}{p99}   goodput {shown[0]:.1f}, not served {shown[1]:.3f}, longest {shown[2]:.1f}")
    return [
        {"name": key, "value": value, "lo": None, "hi": None, "unit": unit, "note": f"load {LOAD:.0%}"}
        for key, (value, unit) in values.items()
    ]


if __name__ == "__main__":
    main()
