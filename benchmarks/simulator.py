"""How fast the cluster model is on one thread: `python benchmarks/simulator.py [--quick] [--json FILE]`.

- `requests_per_s.no_prefix`: the engine alone (choices known beforehand, no observations), A100 replicas
  of an 8B model, lengths of the bundled chat trace, round robin, 8 replicas at 80 % load; `.stepped` the
  same without leaping, `.load_*` at other loads, `.replicas_*` with more replicas at the same load each.
- `requests_per_s.prefix`: the engine with prefix caches of 64-token blocks on Mooncake's long prompts,
  at 80 % load, round robin.
- `env_decisions_per_s.*`: decisions of so many clusters in lockstep, observation and choice included;
  `.1` through `Cluster`, `.prefix` 64 clusters with conversations.
- `clone_us`: one copy of a busy cluster.
- `ratio_to_vidur`: Vidur's reference input (1 000 chat requests, 4 replicas of an 8B model on A100,
  round robin) played here, over the rate of Vidur's own loop.

Rates and microseconds are CPU time of this process. Each figure is the median over repetitions, with the
middle 95 % of a bootstrap of that median.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable
from dataclasses import replace
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
from steersman.traces.readers import load_trace
from steersman.traces.scenario import Scenario
from steersman.traces.schema import Request
from steersman.traces.trace import Trace

Row = dict[str, str | float | None]
COST = REPLICA_INDEX["marginal_cost"]
LOAD = 0.8
DATA = Path(__file__).parent / "data"
MOONCAKE_RPS = 2.4
"""80 % of the 3.0 requests a second that eight A100s complete under a constant backlog, as `steersman
evaluate saturation --scenario homogeneous --trace FILE` measures it."""
VIDUR_RPS = (22.0, 250.0)
"""Requests per second of Vidur's simulation loop, its slowest and its fastest of the reference runs,
measured once on a machine of this kind; not measured again here."""


def main(
    quick: Annotated[bool, typer.Option(help="A tenth of the work.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
) -> None:
    """Measure and print."""
    repetitions = 3 if quick else 9
    requests = 10_000 if quick else 50_000
    homogeneous = load_scenario("homogeneous")
    plain = _trace(homogeneous, requests)

    def engine_row(name: str, note: str, scenario: Scenario, trace: Trace, **how: bool) -> Row:
        rates = [_engine_rate(scenario, trace, **how) for _ in range(repetitions)]
        return _row(f"requests_per_s.{name}", rates, "1/s", note)

    rows = [
        engine_row("no_prefix", "8 replicas, 80 % load", homogeneous, plain, prefix_cache=False),
        engine_row("stepped", "every iteration", homogeneous, plain, prefix_cache=False, stepped=True),
        engine_row("prefix", "Mooncake, 64-token blocks", homogeneous, _mooncake()),
    ]
    for load in (0.3, 0.95):
        trace = _trace(homogeneous, requests, load)
        note = f"8 replicas, {load:.0%} load"
        rows.append(engine_row(f"load_{load:g}", note, homogeneous, trace, prefix_cache=False))
    for count in (64, 512):
        wide = _widened(homogeneous, count)
        trace = _trace(wide, requests * (1 if quick else 4))
        note = f"{count} replicas, 80 % load"
        rows.append(engine_row(f"replicas_{count}", note, wide, trace, prefix_cache=False))
    for size in (64, 256):
        rates = [_lockstep_rate(size, "homogeneous", 50 if quick else 200) for _ in range(repetitions)]
        note = f"{size} clusters of 8 replicas, observed and routed by marginal cost"
        rows.append(_row(f"env_decisions_per_s.{size}", rates, "1/s", note))
    rates = [_lockstep_rate(64, "prefix", 50 if quick else 200) for _ in range(repetitions)]
    rows.append(_row("env_decisions_per_s.prefix", rates, "1/s", "64 clusters, conversations"))
    rates = [_single_rate(homogeneous, plain, 1000) for _ in range(repetitions)]
    rows.append(_row("env_decisions_per_s.1", rates, "1/s", "one cluster, observed and routed"))
    copies = _clone_us(homogeneous, _trace(homogeneous, 1500), 100 * repetitions)
    rows.append(_row("clone_us", copies, "us", "cluster with 1 500 requests, halfway through"))
    four = _widened(homogeneous, 4)
    rates = [_engine_rate(four, _vidur(), prefix_cache=False) for _ in range(3 * repetitions)]
    for label, rate in (("ratio_to_vidur.low", VIDUR_RPS[1]), ("ratio_to_vidur.high", VIDUR_RPS[0])):
        note = f"over {rate:g} requests/s of Vidur's loop"
        rows.append(_row(label, [one / rate for one in rates], "", note))
    _print(rows)
    if json is not None:
        json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


def _trace(scenario: Scenario, requests: int, load: float = LOAD) -> Trace:
    rate_rps = load * (scenario.saturation_rps or 1.0)
    source = load_source(scenario)
    return block_bootstrap(source, rate_rps=rate_rps, duration_s=requests / rate_rps, seed=0)


def _widened(scenario: Scenario, count: int) -> Scenario:
    """So many replicas, with a load that is the same for each."""
    have = len(scenario.replicas)
    replicas = tuple(scenario.replicas[i % have] for i in range(count))
    rps = (scenario.saturation_rps or 1.0) * count / have
    return replace(scenario, replicas=replicas, saturation_rps=rps)


def _mooncake() -> Trace:
    """Its requests, each at its own time; every 512-token block as eight of 64 tokens."""
    trace = load_trace(str(DATA / "mooncake_conversation.parquet"))
    parts = np.uint64(trace.block_tokens // 64)
    whole = np.repeat(trace.block_hashes, int(parts)).astype(np.uint64)
    part = np.tile(np.arange(parts, dtype=np.uint64), len(trace.block_hashes))
    return trace.replace(
        arrival_s=trace.arrival_s * (len(trace) / trace.arrival_s[-1] / MOONCAKE_RPS),
        parent=np.full(len(trace), -1),
        block_hashes=(whole * parts + part).astype(np.int64),
        block_offsets=trace.block_offsets * int(parts),
        block_tokens=64,
    )


def _vidur() -> Trace:
    with (DATA / "vidur_conv1000.csv").open() as lines:
        rows = list(csv.DictReader(lines))
    return Trace.from_requests(
        "vidur-conv1000",
        [
            Request(
                request_id=str(i),
                arrival_s=float(row["arrived_at"]),
                input_tokens=int(row["num_prefill_tokens"]),
                output_tokens=int(row["num_decode_tokens"]),
            )
            for i, row in enumerate(rows)
        ],
    )


def _engine_rate(
    scenario: Scenario, trace: Trace, *, prefix_cache: bool = True, stepped: bool = False
) -> float:
    cluster = Cluster(scenario.replicas, trace, prefix_cache=prefix_cache, stepped=stepped)
    # Room for what will be in flight: growing is rare, and not what is measured.
    cluster.memory.grow(max(8192, 128 * len(scenario.replicas)))
    choices = np.arange(len(trace)) % len(scenario.replicas)

    def play() -> None:
        memory = cluster.memory
        while True:
            engine.replay(memory.address, choices, cluster.table.output_p50)
            if cluster.exhausted:
                break
            memory.grow(2 * len(memory.sequences))
        cluster.finish(1e9)

    return len(trace) / _cpu_s(play)


def _lockstep_rate(size: int, scenario: str, steps: int) -> float:
    env = VectorRoutingEnv(size, scenario=scenario, requests=2 * steps)
    observation, _ = env.reset(seed=0)

    def play() -> None:
        nonlocal observation
        for _ in range(steps):
            cost = np.where(observation["mask"] > 0, observation["replicas"][..., COST], np.inf)
            observation, *_ = env.step(cost.argmin(axis=-1))

    return size * steps / _cpu_s(play)


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
