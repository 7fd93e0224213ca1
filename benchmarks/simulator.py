"""How fast the cluster model is on one thread: `python benchmarks/simulator.py [--quick] [--json FILE]`.

- `requests_per_s.no_prefix`: the engine alone (no observations), 8 A100 replicas of an 8B model near
  saturation, lengths of the bundled chat trace, round robin.
- `requests_per_s.prefix`: the same engine with conversations over the trace and prefix caches on.
- `env_decisions_per_s.64`: decisions of 64 clusters in lockstep, observation and choice included.
- `env_decisions_per_s.1`: of a single cluster, through `Cluster`.
- `clone_us`: one copy of a busy cluster.

Each figure is the median over repetitions, with the middle 95 % of a bootstrap of that median.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import numpy as np
import orjson
import typer
from rich.console import Console
from rich.table import Table

from steersman.env import engine
from steersman.env.cluster import Cluster
from steersman.env.gym import VectorRoutingEnv
from steersman.env.scenario import load_scenario, load_source
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.schema import Scenario
from steersman.traces.trace import Trace

Row = dict[str, str | float | None]
COST = REPLICA_INDEX["marginal_cost"]
ENVIRONMENTS = 64
LOAD = 0.9


def main(
    quick: Annotated[bool, typer.Option(help="A tenth of the work.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
) -> None:
    """Measure and print."""
    repetitions = 3 if quick else 9
    requests = 5_000 if quick else 50_000
    homogeneous, prefix = load_scenario("homogeneous"), load_scenario("prefix")
    plain_trace, shared_trace = _trace(homogeneous, requests), _trace(prefix, requests // 5)
    rows = [
        _row(
            "requests_per_s.no_prefix",
            [_engine_rate(homogeneous, plain_trace, prefix_cache=False) for _ in range(repetitions)],
            "1/s",
            "engine alone, 8 replicas, one thread",
        ),
        _row(
            "requests_per_s.prefix",
            [_engine_rate(prefix, shared_trace, prefix_cache=True) for _ in range(repetitions)],
            "1/s",
            "engine alone, conversations with 64-token blocks",
        ),
        _row(
            "env_decisions_per_s.64",
            [_lockstep_rate(100 if quick else 500) for _ in range(repetitions)],
            "1/s",
            "64 clusters of 8 replicas, observed and routed by marginal cost",
        ),
        _row(
            "env_decisions_per_s.1",
            [_single_rate(homogeneous, plain_trace, 1000) for _ in range(repetitions)],
            "1/s",
            "one cluster of 8 replicas, observed and routed by marginal cost",
        ),
        _row(
            "clone_us",
            _clone_us(homogeneous, _trace(homogeneous, 1500), 100 * repetitions),
            "us",
            "cluster with 1 500 requests, halfway through",
        ),
    ]
    _print(rows)
    if json is not None:
        json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


def _trace(scenario: Scenario, requests: int) -> Trace:
    rate_rps = LOAD * (scenario.saturation_rps or 1.0)
    source = load_source(scenario)
    return block_bootstrap(source, rate_rps=rate_rps, duration_s=requests / rate_rps, seed=0)


def _engine_rate(scenario: Scenario, trace: Trace, *, prefix_cache: bool) -> float:
    cluster = Cluster(scenario.replicas, trace, prefix_cache=prefix_cache)
    cluster.memory.grow(4096)
    choices = np.arange(len(trace)) % len(scenario.replicas)

    def play() -> None:
        memory = cluster.memory
        while engine.replay(memory.address, choices, cluster.table.output_p50) or not memory.free_slots:
            memory.grow(2 * len(memory.sequences))
        cluster.finish(1e9)

    return len(trace) / _cpu_s(play)


def _lockstep_rate(steps: int) -> float:
    env = VectorRoutingEnv(ENVIRONMENTS, scenario="homogeneous", requests=4 * steps)
    observation, _ = env.reset(seed=0)

    def play() -> None:
        nonlocal observation
        for _ in range(steps):
            cost = np.where(observation["mask"] > 0, observation["replicas"][..., COST], np.inf)
            observation, *_ = env.step(cost.argmin(axis=-1))

    return ENVIRONMENTS * steps / _cpu_s(play)


def _single_rate(scenario: Scenario, trace: Trace, decisions: int) -> float:
    cluster = Cluster(scenario.replicas, trace)

    def play() -> None:
        for _ in range(decisions):
            cluster.next_request()
            cluster.dispatch(int(cluster.observe().replicas[:, COST].argmin()))

    return decisions / _cpu_s(play)


def _clone_us(scenario: Scenario, trace: Trace, repetitions: int) -> list[float]:
    cluster = Cluster(scenario.replicas, trace)
    for _ in range(len(trace) // 2):
        cluster.next_request()
        cluster.dispatch(int(cluster.observe().replicas[:, COST].argmin()))
    return [1e6 * _cpu_s(cluster.clone) for _ in range(repetitions)]


def _cpu_s(work: Callable[[], object]) -> float:
    """CPU time of this process: other work on the machine does not count."""
    start = time.process_time_ns()
    work()
    return (time.process_time_ns() - start) / 1e9


def _row(name: str, samples: list[float], unit: str, note: str) -> Row:
    rng = np.random.default_rng(0)
    values = np.array(samples[1:] or samples)  # the first one compiles
    medians = np.median(rng.choice(values, (1000, len(values))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975))
    return {
        "name": name,
        "value": float(np.median(values)),
        "lo": float(low),
        "hi": float(high),
        "unit": unit,
        "note": note,
    }


def _print(rows: list[Row]) -> None:
    table = Table(title="Cluster model")
    for heading in ("figure", "value", "95 % interval", "unit", "note"):
        number = heading in ("value", "95 % interval")
        table.add_column(heading, justify="right" if number else "left", no_wrap=heading == "figure")
    for row in rows:
        value, low, high = (f"{row[key]:,.4g}" for key in ("value", "lo", "hi"))
        if row["unit"] == "1/s":
            value, low, high = (f"{row[key]:,.0f}" for key in ("value", "lo", "hi"))
        table.add_row(str(row["name"]), value, f"{low} – {high}", str(row["unit"]), str(row["note"]))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
