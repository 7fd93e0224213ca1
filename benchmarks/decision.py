"""From a request to a chosen replica: how long the router takes (`serving/router.py`).

::

    python benchmarks/decision.py [--quick] [--json FILE]

Everything between a parsed request and a choice: features, output length, objectives, snapshot, prefix
match, observation, policy and guard. 8, 64 and 256 replicas under load (`deciding.py`), in a process
that has loaded what a router loads. `decision_p50_us.64` is the learned policy behind its guard;
`.p2c.64`, `.marginal-cost.64` and `.predicted-latency.64` are the same router with these policies;
`.numpy.64` is the learned policy where features are not calculated by machine code (`policy.compiled`),
turn by turn with the other; `_cpu_` is the processor's time alone, which other work on the machine
disturbs less.
`afterwards_p50_us` is what follows while the request is on its way already: the latencies of the chosen
replica predicted, and expected. `stage_p50_us` divides the learned policy's median. Beside them, the
libraries alone: `onnxruntime_*` runs the policy's graph on inputs that are ready, `lightgbm_*` predicts
output length, TTFT and TPOT by the forests that the served graphs were made of.

The policy is the one that ships with Steersman; length and latency are fitted on the `prefix` scenario's
traffic, which is what comes.
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
from deciding import BUNDLE, WARM_UP, Traffic, World
from scoring import timed

from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import fit_latency
from steersman.agents.fit.length import fit_length
from steersman.env.scenario import load_scenario, load_source, saturation_of
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, write_bundle
from steersman.predictors.code_cache import FEATURES, cache_folder, features_file, numba_version
from steersman.predictors.latency import latency_rows
from steersman.predictors.length import LengthModel
from steersman.serving.compilation import COMMAND
from steersman.traces.schema import Observation

REPLICAS = (8, 64, 256)
SCENARIO, LOAD = "prefix", 0.8
SEEN_REPLICAS = 8
"""Of the world that LightGBM is shown; it is given the same ones over and over for more."""

Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="fewer calls, smaller models")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    calls = 1_000 if options.quick else 10_000
    with tempfile.TemporaryDirectory() as scratch:
        forests, seen = prepare(Path(scratch), quick=options.quick)
        if numba_version() and (folder := cache_folder(FEATURES)) is not None:
            compiling = [*COMMAND, str(features_file(folder))]
            subprocess.run(compiling, check=True)
        script = Path(__file__).with_name("deciding.py")
        command = [sys.executable, str(script), scratch, str(calls), *map(str, REPLICAS)]
        answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(answer.stdout)
    for count in REPLICAS:
        figures |= library_figures(forests, seen, count, calls // 4)
    rows = [row(name, value, calls) for name, value in figures.items()]
    for each in rows:
        print(f"{each['name']:<46}{each['value']:>10.4g} {each['unit']:<6} {each['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def prepare(directory: Path, *, quick: bool) -> tuple[dict[str, list[lgb.Booster]], Observation]:
    """Write a world and a bundle for it; returns LightGBM's forests, and what is seen in this world."""
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
    now = datetime.now(tz=UTC)
    bundle = directory / BUNDLE
    write_bundle(bundle, files, version="benchmark", code_version="benchmark", created=now)
    traffic = Traffic(world, SEEN_REPLICAS, "marginal-cost", bundle)
    traffic.play(WARM_UP * SEEN_REPLICAS)
    seen = traffic.step().observation
    return {"length": boosters(length), "latency": boosters(latency)}, seen


def boosters(fitted: FittedModel) -> list[lgb.Booster]:
    """LightGBM's own form of the forests."""
    return [lgb.Booster(model_str=text) for text in fitted.text.values()]


def library_figures(
    forests: dict[str, list[lgb.Booster]], seen: Observation, count: int, calls: int
) -> dict[str, float]:
    """LightGBM alone: the length of one request, TTFT and TPOT of every candidate."""
    replicas = np.tile(seen.replicas, (count // SEEN_REPLICAS, 1))
    rows = {
        "length": seen.request[None, : forests["length"][0].num_feature()],
        "latency": latency_rows(replicas, seen.request),
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
