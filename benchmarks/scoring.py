"""How long it takes to predict TTFT and TPOT of 64 candidates, as the router does.

::

    python benchmarks/scoring.py latency.onnx CALLS

Prints a JSON object of microseconds. `benchmarks/predictors.py` runs it in a process of its own: like
the router, this one has loaded neither LightGBM nor any other training library.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from steersman.agents.samples import sample_observation
from steersman.predictors.latency import LatencyModel

CANDIDATES, REQUESTS = 64, 16


def main() -> None:
    """Measure and print."""
    model = LatencyModel.from_bytes(Path(sys.argv[1]).read_bytes())
    calls = int(sys.argv[2])
    if loaded := {"lightgbm", "torch", "sklearn", "pandas"} & set(sys.modules):
        raise SystemExit(f"{', '.join(sorted(loaded))} must not be loaded here")
    seen = [sample_observation(np.random.default_rng(seed), CANDIDATES) for seed in range(REQUESTS)]
    replicas = np.stack([each.replicas for each in seen])
    requests = np.stack([each.request for each in seen])
    figures = timed("score64", lambda: model.predict(replicas[0], requests[0]), calls)
    batch = timed("batch", lambda: model.predict(replicas, requests), max(calls // 16, 20))
    figures[f"score_batch_{REQUESTS}x{CANDIDATES}_us"] = batch["batch_p50_us"]
    print(json.dumps(figures))


def timed(name: str, call: Callable[[], object], calls: int) -> dict[str, float]:
    """p50 and p99 of one call: by the clock, and of the processor's time it takes alone.

    On a machine with other work the clock's p99 counts the turns others took.
    """
    for _ in range(50):
        call()
    wall, processor = np.empty(calls), np.empty(calls)
    for i in range(calls):
        began_cpu, began = time.thread_time(), time.perf_counter()
        call()
        wall[i] = time.perf_counter() - began
        processor[i] = time.thread_time() - began_cpu
    return {
        f"{name}_p50_us": 1e6 * float(np.percentile(wall, 50)),
        f"{name}_p99_us": 1e6 * float(np.percentile(wall, 99)),
        f"{name}_cpu_p99_us": 1e6 * float(np.percentile(processor, 99)),
    }


if __name__ == "__main__":
    main()
