"""How well and how fast the predictors predict (EVALUATION, "Prediction").

::

    python benchmarks/predictors.py [--quick] [--json FILE]

Length models are fitted on several traces and measured on the last quarter of each. The latency
model is fitted on simulated runs of the `mixed` and `demo` clusters and measured on runs with unseen
traffic, seeds and hardware at 40 to 120 % of saturation; figures without a cluster's name are the mean
of both. `p90_coverage` is that of p90 as served, with the width that each run's outcomes have taught by
then, and `p90_coverage_frozen` that of the model alone. `llmd` is llm-d's model on the same samples.
`score64` is one call that predicts TTFT and TPOT of 64 candidates (`scoring.py`). `drift` is what
slower hardware and other traffic do to predictions while they serve, on one course of `demo`
(`drift.py`, which also plays more).
`--quick` takes one seed of smaller runs; the full run takes five, and gives 95 % intervals over them.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
from drift import measure as drift_rows
from scoring import timed

from steersman.agents.evaluate.latency_figures import latency_figures
from steersman.agents.evaluate.length_figures import length_figures
from steersman.agents.fit.fitted import FittedModel
from steersman.agents.samples import sample_observation
from steersman.predictors.latency import latency_rows
from steersman.predictors.prefix_index import PrefixIndex
from steersman.predictors.text import text_features

CLUSTERS = ("mixed", "demo")
QUICK = {"runs": 24, "decisions": 1_000}
FULL = {"runs": 36, "decisions": 1_000}
LENGTH_DATA = Path(__file__).parent / "data" / "lengths"
T_95 = {1: float("nan"), 2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78}
"""Student's t for a 95 % interval, by number of seeds."""

Row = dict[str, Any]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="one seed, smaller runs")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    rows, fitted = latencies(1 if options.quick else 5, **(QUICK if options.quick else FULL))
    rows += scoring(fitted, calls=2_000 if options.quick else 20_000)
    figures = length_figures(LENGTH_DATA, seeds=2 if options.quick else 5)
    rows += [over_seeds(name, values) for name, values in sorted(figures.items())]
    rows += drift_rows("demo", None, quick=options.quick, seeds=1, prefix="")
    rows += timings(calls=500 if options.quick else 5_000)
    for row in rows:
        interval = "" if row["lo"] is None else f"  [{row['lo']:.4g}, {row['hi']:.4g}]"
        print(f"{row['name']:<46}{row['value']:>12.4g} {row['unit']:<6}{interval}  {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def latencies(seeds: int, *, runs: int, decisions: int) -> tuple[list[Row], FittedModel]:
    """TTFT and TPOT: figures over clusters and seeds, and the last model."""
    figures: dict[str, list[float]] = defaultdict(list)
    for seed in range(seeds):
        each = []
        for cluster in CLUSTERS:
            start = time.perf_counter()
            found, fitted = latency_figures(cluster, seed, runs=runs, decisions=decisions)
            figures[f"latency.{cluster}.fit_s"].append(time.perf_counter() - start)
            each.append(found)
            for name, value in found.items():
                if "load" not in name:
                    figures[f"{name}.{cluster}"].append(value)
        for name in each[0]:
            figures[name].append(float(np.mean([found[name] for found in each])))
    return [over_seeds(name, values) for name, values in sorted(figures.items())], fitted


def scoring(fitted: FittedModel, *, calls: int) -> list[Row]:
    """Microseconds of one prediction for 64 candidates: served, and by LightGBM itself."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "latency.onnx"
        path.write_bytes(fitted.onnx)
        script = Path(__file__).with_name("scoring.py")
        answer = subprocess.run(
            [sys.executable, script, path, str(calls)], check=True, capture_output=True, text=True
        )
    figures: dict[str, float] = json.loads(answer.stdout)
    forests = [lgb.Booster(model_str=text) for text in fitted.text.values()]
    seen = sample_observation(np.random.default_rng(0), 64)
    rows = latency_rows(seen.replicas, seen.request)
    plain = timed(
        "score64_lightgbm",
        lambda: [forest.predict(rows, num_threads=1) for forest in forests],
        calls // 4,
    )
    return microseconds(figures | plain, calls)


def over_seeds(name: str, values: list[float]) -> Row:
    """Mean over seeds and its 95 % interval."""
    unit = "s" if name.endswith("_s") else "share"
    mean, half = float(np.mean(values)), None
    if len(values) > 1:
        half = T_95[len(values)] * float(np.std(values, ddof=1)) / len(values) ** 0.5
    lo, hi = (None, None) if half is None else (mean - half, mean + half)
    return {
        "name": name,
        "value": mean,
        "lo": lo,
        "hi": hi,
        "unit": unit,
        "note": f"{len(values)} seeds",
    }


def timings(*, calls: int) -> list[Row]:
    """Microseconds per call of what else the router does for each request."""
    hashes = tuple(range(1, 513))
    index = PrefixIndex([100_000] * 64)
    for replica in range(64):
        index.insert(replica, hashes[: 8 * replica], 0.0)
    bodies = {
        size: {"model": "m", "messages": [{"role": "user", "content": ("What is the tide? " * repeats)}]}
        for size, repeats in (("4kb", 228), ("100kb", 5_556), ("10mb", 555_556))
    }
    return [
        *times("prefix_match64", lambda: index.match(hashes), calls),
        *times("text_features_4kb", lambda: text_features(bodies["4kb"]), calls),
        *times("text_features_100kb", lambda: text_features(bodies["100kb"]), calls // 3),
        *times("text_features_10mb", lambda: text_features(bodies["10mb"]), calls // 30),
    ]


def times(name: str, call: Callable[[], object], calls: int) -> list[Row]:
    """Rows of `scoring.timed`."""
    return microseconds(timed(name, call, calls), calls)


def microseconds(figures: dict[str, float], calls: int) -> list[Row]:
    """Rows of times per call."""
    shape = {"lo": None, "hi": None, "unit": "us", "note": f"{calls} calls"}
    return [{"name": name, "value": value, **shape} for name, value in figures.items()]


if __name__ == "__main__":
    main()
