"""The queue over HTTP: real processes, emulated backends, the same arrivals with it and without.

::

    python benchmarks/queueing_http.py [--quick] [--json FILE] [--part load|starvation]

The `demo` scenario's four replicas are emulated as first-come, first-served engines, `steersman serve`
stands before them, and traces with classes P0 to P3 mixed 40 : 20 : 25 : 15 are replayed at 130 % load,
under `p2c` and `marginal-cost`; `--quick` takes one policy and half a minute, three times. Then
starvation: P0 and P1 (60 and 30 %) at 150 % load leave nothing to the others, with ageing and without,
ageing and the run four times as fast as by default.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from queueing_figures import (
    PRESSURE_SHARES,
    Row,
    interval_text,
    mean_row,
    pressure_rows,
    print_pressure,
    ratio_row,
)

from steersman.agents.evaluate.queueing import CLASS_SHARES, under_pressure, with_class_shares
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
from steersman.traces.scenario import Scenario
from steersman.traces.schema import Status
from steersman.traces.trace import Trace

SCENARIO = "demo"
LOAD = 1.3
SEED = 7
Shares = Sequence[float]


AGED_S = (3.75, 3.75, 7.5, 15.0)
"""A quarter of the defaults."""
AGEING: dict[str, dict[str, Any]] = {
    "ageing": {"enabled": True, "ageing_s": AGED_S},
    "no ageing": {"enabled": True, "ageing_s": AGED_S, "aged_share": 0.0, "kept_share": 0.0},
}
COUNTED_S = 20.0
"""Starvation is looked at in those who arrive until then."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--part", choices=("all", "load", "starvation"), default="all")
    options = parser.parse_args()
    scenario = load_scenario(SCENARIO)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as place, Children(Path(place) / "logs") as children:
        stage = choose_stage(scenario, SCENARIO, Path(place), Path(place) / "bundle")
        start_backends(children, stage)
        if options.part != "starvation":
            rows += _loads(children, stage, quick=options.quick)
        if options.part != "load":
            rows += _starvation(children, stage, quick=options.quick)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _trace(scenario: Scenario, seed: int, duration_s: float, load: float, shares: Shares) -> Trace:
    source = with_class_shares(load_source(scenario, "evaluation"), shares)
    return make_trace(
        scenario, seed, duration_s=duration_s, load=load, split="evaluation", source=source
    )


def _loads(children: Children, stage: Stage, *, quick: bool) -> list[Row]:
    rows: list[Row] = []
    print(f"{LOAD:.0%} load; p99 TTFT of P0..P3 in s")
    for policy in ("p2c",) if quick else ("p2c", "marginal-cost"):
        found: dict[str, list[dict[str, float]]] = {"none": [], "queue": []}
        for seed in range(SEED, SEED + (3 if quick else 5)):
            trace = _trace(stage.scenario, seed, 30.0 if quick else 90.0, LOAD, CLASS_SHARES)
            for queue, runs in found.items():
                name = f"{queue}, {policy}, seed {seed}"
                result = _play(children, stage, name, policy, trace, {"enabled": queue == "queue"})
                runs.append(_figures(trace, result))
                _print(name, runs[-1])
        for queue, runs in found.items():
            rows += [
                mean_row(f"{key}.{queue}, {policy}", [run[key] for run in runs], _unit(key))
                for key in runs[0]
            ]
        with_it, without = found["queue"], found["none"]
        p0_s = [[run["p99_ttft_s.P0"] for run in runs] for runs in (with_it, without)]
        gains = [q["goodput_rps"] - n["goodput_rps"] for q, n in zip(with_it, without, strict=True)]
        compared = (
            ratio_row(f"p99_ttft_ratio.P0, {policy}", *p0_s),
            mean_row(f"goodput_gain_rps, {policy}", gains, "1/s"),
        )
        ratio, gain = map(interval_text, compared)
        print(f"    P0's p99 {ratio} of that without; goodput {gain} more")
        rows += compared
    return rows


def _starvation(children: Children, stage: Stage, *, quick: bool) -> list[Row]:
    trace = _trace(stage.scenario, SEED, 80.0 if quick else 150.0, 1.5, PRESSURE_SHARES)
    rows: list[Row] = []
    for name, queue in AGEING.items():
        result = _play(children, stage, name, "p2c", trace, queue)
        refused = np.array([status is Status.REJECTED for status in result.status])
        classes = under_pressure(
            result.scheduled_s,
            result.ttft_s,
            refused,
            trace.priority,
            start_s=0.0,
            end_s=COUNTED_S,
            until_s=float(trace.arrival_s[-1]),
        )
        print_pressure(f"150 %, p2c, {name}: until {trace.arrival_s[-1]:.0f} s", classes)
        rows += pressure_rows(f"{name}, 150%, p2c", classes)
    return rows


def _play(
    children: Children, stage: Stage, name: str, policy: str, trace: Trace, queue: dict[str, Any]
) -> ReplayResult:
    config = write_router_config(stage, policy, queue=queue, bundle={"directory": ""})
    children.start(name, "serve", "--config", str(config), ready=(f"{stage.router_url}/health",))
    try:
        sent = ReplaySettings(url=stage.router_url)
        asyncio.run(replay(warm_up(trace), sent))
        slo = service_levels(trace, [spec.profile for spec in stage.scenario.replicas])
        return asyncio.run(replay(trace, sent, slo=slo))
    finally:
        children.stop(name)


def _figures(trace: Trace, result: ReplayResult) -> dict[str, float]:
    figures = {
        "goodput_rps": float(result.slo_met.sum() / trace.arrival_s[-1]),
        "not_served": float((~result.ok).mean()),
        "client_lateness_p99_s": float(np.quantile(result.lateness_s, 0.99)),
        "longest_wait_s": float(np.nanmax(result.ttft_s)),
    }
    for level in range(LEVELS):
        own = trace.priority == level
        served_s = result.ttft_s[own & result.ok]
        p99_s = float(np.quantile(served_s, 0.99)) if len(served_s) else float("nan")
        figures[f"p99_ttft_s.P{level}"] = p99_s
        figures[f"slo_attainment.P{level}"] = float(result.slo_met[own].mean())
    return figures


def _print(name: str, figures: dict[str, float]) -> None:
    p99 = "".join(f"{figures[f'p99_ttft_s.P{level}']:8.2f}" for level in range(LEVELS))
    print(
        f"{name:<24}{p99}   goodput {figures['goodput_rps']:.1f}, P0 met "
        f"{figures['slo_attainment.P0']:.0%}, not served {figures['not_served']:.3f}, longest "
        f"{figures['longest_wait_s']:.1f}, client late {figures['client_lateness_p99_s']:.3f}"
    )


def _unit(key: str) -> str:
    name = key.partition(".")[0]
    return "1/s" if name.endswith("_rps") else "s" if name.endswith("_s") else "share"


if __name__ == "__main__":
    main()
