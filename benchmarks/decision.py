"""From a request to a chosen replica: how long the router takes (`serving/router.py`).

::

    python benchmarks/decision.py [--quick] [--json FILE]

Everything between a parsed request and a choice: features, output length, objectives, snapshot, prefix
match, observation, policy and guard. 8, 64 and 256 replicas under load (`deciding.py`), in a process
that has loaded what a router loads. `decision_p50_us.64` is the learned policy behind its guard;
`.p2c.64`, `.marginal-cost.64` and `.predicted-latency.64` are the same router with these policies;
`_cpu_` is the processor's time alone, which other work on the machine disturbs less.
`afterwards_p50_us` is what follows while the request is on its way already: the latencies of the chosen
replica predicted, and expected. `stage_p50_us` divides the learned policy's median. Beside them, the
libraries alone: `onnxruntime_*` runs the policy's graph on inputs that are ready, `lightgbm_*` predicts
output length, TTFT and TPOT by the forests that the served graphs were made of.

The models are real in size and form: length and latency fitted on the `prefix` scenario's traffic, the
policy a network of the default settings whose constants are of this traffic, untrained; weights do not
change how long it takes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import torch
from deciding import BUNDLE, Traffic, World
from scoring import timed

from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import fit_latency
from steersman.agents.fit.length import fit_length
from steersman.agents.learned.config import NetworkSettings
from steersman.agents.learned.export import export_policy
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.ranges import Ranges
from steersman.env.scenario import load_scenario, load_source, saturation_of
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, write_bundle
from steersman.predictors.latency import latency_rows
from steersman.predictors.length import LengthModel
from steersman.traces.schema import Observation

REPLICAS = (8, 64, 256)
SCENARIO, LOAD = "prefix", 0.8
STATES, STATE_REPLICAS, PARITY = 1_200, 8, 6

Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer calls, smaller models")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    torch.set_num_threads(1)
    calls = 1_000 if options.quick else 10_000
    with tempfile.TemporaryDirectory() as scratch:
        forests, states = prepare(Path(scratch), quick=options.quick)
        script = Path(__file__).with_name("deciding.py")
        command = [sys.executable, str(script), scratch, str(calls), *map(str, REPLICAS)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    for count in REPLICAS:
        figures |= library_figures(forests, states, count, calls // 4)
    rows = [row(name, value, calls) for name, value in figures.items()]
    for each in rows:
        print(f"{each['name']:<46}{each['value']:>10.4g} {each['unit']:<6} {each['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def prepare(directory: Path, *, quick: bool) -> tuple[dict[str, list[lgb.Booster]], Observation]:
    """Write a world and a bundle for it; returns LightGBM's forests, and states of this world."""
    scenario = load_scenario(SCENARIO)
    profiles = [spec.profile.name for spec in scenario.replicas]
    rps_per_replica = LOAD * saturation_of(scenario, "evaluation") / len(profiles)
    world = World(profiles, rps_per_replica, load_source(scenario, "evaluation"))
    world.save(directory)
    trace = load_source(scenario, "train")
    length = fit_length(trace, seed=0)
    latency = fit_latency(
        scenario,
        trace,
        seed=0,
        length=LengthModel.from_bytes(length.onnx),
        runs=9 if quick else 36,
        decisions=300 if quick else 1_000,
    )
    files = {LENGTH_FILE: length.onnx, LATENCY_FILE: latency.onnx}
    bundle = directory / BUNDLE
    write(bundle, files)
    traffic = Traffic(world, STATE_REPLICAS, "marginal-cost", bundle)
    # From the first request on: a pool that has answered nothing yet is no surprise to the guard.
    states = stacked([route.observation for route in traffic.routes(STATES)])
    write(bundle, files | {POLICY_FILE: make_policy(states)})
    return {"length": boosters(length), "latency": boosters(latency)}, states


def make_policy(states: Observation) -> bytes:
    """A network of the default settings, with the constants and ranges that these states give."""
    torch.manual_seed(0)
    network = RoutingNetwork(NetworkSettings())
    tensors = [getattr(states, name) for name in ("replicas", "request", "pool", "mask")]
    network.fit_compression(*map(torch.from_numpy, tensors))
    ranges = Ranges.of(states.replicas[states.mask], states.request)
    ranges = ranges.regardless_of(network.unread_request_features())
    some = Observation(*(each[:PARITY] for each in tensors))
    pool_range = states.pool.min(axis=0), states.pool.max(axis=0)
    return export_policy(network.eval(), ranges, pool_range, some, version="untrained")


def write(directory: Path, files: dict[str, bytes]) -> None:
    """As `steersman train` writes a bundle."""
    now = datetime.now(tz=UTC)
    write_bundle(directory, files, version="benchmark", code_version="benchmark", created=now)


def stacked(seen: list[Observation]) -> Observation:
    """With a batch dimension."""
    return Observation(
        np.stack([each.replicas for each in seen]),
        np.stack([each.request for each in seen]),
        np.stack([each.pool for each in seen]),
        np.stack([each.mask for each in seen]),
    )


def boosters(fitted: FittedModel) -> list[lgb.Booster]:
    """LightGBM's own form of the forests."""
    return [lgb.Booster(model_str=text) for text in fitted.text.values()]


def library_figures(
    forests: dict[str, list[lgb.Booster]], states: Observation, count: int, calls: int
) -> dict[str, float]:
    """LightGBM alone: the length of one request, TTFT and TPOT of every candidate."""
    replicas = np.tile(states.replicas[0], (count // states.replicas.shape[1], 1))
    rows = {
        "length": states.request[:1, : forests["length"][0].num_feature()],
        "latency": latency_rows(replicas, states.request[0]),
    }
    found = timed(
        "lightgbm",
        lambda: [each.predict(rows[kind], num_threads=1) for kind in rows for each in forests[kind]],
        calls,
    )
    return {f"{name}.{count}": value for name, value in found.items()}


def row(name: str, value: float, calls: int) -> Row:
    """One figure."""
    unit = "share" if name.startswith("fallback") else "us"
    return {"name": name, "value": value, "lo": None, "hi": None, "unit": unit, "note": f"{calls} calls"}


if __name__ == "__main__":
    main()
