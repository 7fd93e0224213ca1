"""How well and how fast the predictors predict (EVALUATION, "Prediction").

::

    python benchmarks/predictors.py [--quick] [--json FILE]

Length models are fitted on several traces and measured on the last quarter of each. The latency
model is fitted on simulated runs of the `mixed` and `demo` clusters and measured on runs with unseen
traffic, seeds and hardware. `score64` is one call that predicts TTFT and TPOT of 64 candidates.
`--quick` takes one seed of smaller runs; the full run takes five, and gives 95 % intervals over them.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from steersman.agents.evaluate.length_figures import length_figures
from steersman.agents.fit.latency import TRAIN_SHARE, fit_latency
from steersman.agents.fit.length import fit_length
from steersman.agents.samples import sample_observation
from steersman.env.scenario import load_scenario
from steersman.predictors.latency import LatencyModel
from steersman.predictors.length import LengthModel
from steersman.predictors.prefix_index import PrefixIndex
from steersman.predictors.text import text_features
from steersman.traces.readers import load_trace

CLUSTERS = ("mixed", "demo")
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
    rows, model = fit_and_measure(
        seeds=1 if options.quick else 5, decisions=600 if options.quick else 2_000
    )
    figures = length_figures(LENGTH_DATA, seeds=2 if options.quick else 5)
    rows += [over_seeds(name, values) for name, values in sorted(figures.items())]
    rows += [*timings(model, calls=2_000 if options.quick else 20_000)]
    for row in rows:
        interval = "" if row["lo"] is None else f"  [{row['lo']:.4g}, {row['hi']:.4g}]"
        print(f"{row['name']:<46}{row['value']:>12.4g} {row['unit']:<6}{interval}  {row['note']}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def fit_and_measure(*, seeds: int, decisions: int) -> tuple[list[Row], LatencyModel]:
    """Fit both models for every seed; figures over the seeds, and the last latency model."""
    trace = load_trace("azure-chat")
    past = trace.split((TRAIN_SHARE, 1.0 - TRAIN_SHARE))[0]
    figures: dict[str, list[float]] = defaultdict(list)
    for seed in range(seeds):
        # Latency is measured on the last part: the lengths it is told must not come from there.
        known = LengthModel.from_bytes(fit_length(past, seed=seed).onnx)
        for cluster in CLUSTERS:
            start = time.perf_counter()
            fitted = fit_latency(
                load_scenario(cluster),
                trace,
                seed=seed,
                length=known,
                decisions=decisions,
            )
            figures[f"latency.{cluster}.fit_s"].append(time.perf_counter() - start)
            for name, value in fitted.metrics.items():
                target, _, metric = name.partition("_")
                if target in {"ttft", "tpot"}:
                    figures[f"{target}.{metric}.{cluster}"].append(value)
    for target in ("ttft", "tpot"):
        for metric in ("mdape", "coverage_p90"):
            each = [figures[f"{target}.{metric}.{cluster}"] for cluster in CLUSTERS]
            figures[f"{target}.{metric}"] = np.mean(each, axis=0).tolist()
    rows = [over_seeds(name, values) for name, values in sorted(figures.items())]
    return rows, LatencyModel.from_bytes(fitted.onnx)


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


def timings(model: LatencyModel, *, calls: int) -> list[Row]:
    """Microseconds per call of what the router does for each request."""
    seen = sample_observation(np.random.default_rng(0), 64)
    hashes = tuple(range(1, 513))
    index = PrefixIndex([100_000] * 64)
    for replica in range(64):
        index.insert(replica, hashes[: 8 * replica])
    bodies = {
        size: {"model": "m", "messages": [{"role": "user", "content": ("What is the tide? " * repeats)}]}
        for size, repeats in (("4kb", 228), ("100kb", 5_556), ("10mb", 555_556))
    }
    return [
        *timed("score64", lambda: model.predict(seen.replicas, seen.request), calls),
        *timed("prefix_match64", lambda: index.match(hashes), calls // 4),
        *timed("text_features_4kb", lambda: text_features(bodies["4kb"]), calls // 4),
        *timed("text_features_100kb", lambda: text_features(bodies["100kb"]), calls // 10),
        *timed("text_features_10mb", lambda: text_features(bodies["10mb"]), calls // 100),
    ]


def timed(name: str, call: Callable[[], object], calls: int) -> list[Row]:
    """p50 and p99 of one call."""
    for _ in range(50):
        call()
    spent = []
    for _ in range(calls):
        start = time.perf_counter()
        call()
        spent.append(1e6 * (time.perf_counter() - start))
    return [
        {"name": f"{name}_p{q}_us", "value": float(np.percentile(spent, q)), "lo": None, "hi": None,
         "unit": "us", "note": f"{calls} calls"}
        for q in (50, 99)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
