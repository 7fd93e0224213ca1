"""How fast the environment of scaling is on one thread: `benchmarks/scaling.py [--quick] [--json FILE]`.

`scaling_requests_per_s.N`: requests that N clusters in lockstep observe, route by marginal cost and
serve, the scaler's own decisions and observations included. Eight replicas of a 70B model each, at 30 %
of their saturation, all serving. The median over repetitions, with the middle 95 % of a bootstrap of it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import orjson
import typer

from steersman.env.gym import VectorScalingEnv
from steersman.env.scaling import ScalingRules
from steersman.env.scaling_episodes import SwingSampler
from steersman.env.scenario import load_scenario

CLUSTERS = (1, 16, 64)
REPETITIONS, QUICK_REPETITIONS = 8, 2


def main(
    quick: Annotated[bool, typer.Option("--quick", help="Fewer repetitions.")] = False,
    json: Annotated[Path | None, typer.Option(help="Write the rows to this file.")] = None,
) -> None:
    """Measure and print."""
    rows = [_row(size, QUICK_REPETITIONS if quick else REPETITIONS) for size in CLUSTERS]
    for row in rows:
        print(
            f"{row['name']:28} {row['value']:9,.0f}  ({row['lo']:,.0f} – {row['hi']:,.0f}) {row['unit']}"
        )
    if json is not None:
        json.write_bytes(orjson.dumps(rows, option=orjson.OPT_INDENT_2))


def _row(size: int, repetitions: int) -> dict[str, Any]:
    sampler = SwingSampler(
        load_scenario("tensor-parallel"), serving=8, duration_s=600.0, load=(0.3, 0.3)
    )
    env = VectorScalingEnv(size, sampler=sampler)
    env.reset(seed=0)
    hold = np.full(size, ScalingRules().changes.index(0))
    env.step(hold)  # the first one compiles
    rates = []
    for _ in range(repetitions):
        before = sum(scaling.arrived for scaling in env.scalings)
        start = time.process_time()
        env.step(hold)
        elapsed_s = time.process_time() - start
        rates.append((sum(scaling.arrived for scaling in env.scalings) - before) / elapsed_s)
    medians = np.median(np.random.default_rng(0).choice(rates, (1000, len(rates))), axis=1)
    low, high = np.quantile(medians, (0.025, 0.975)).tolist()
    return {
        "name": f"scaling_requests_per_s.{size}",
        "value": float(np.median(rates)),
        "lo": low,
        "hi": high,
        "unit": "1/s",
        "note": f"{size} clusters of 8 replicas, one thread, CPU time",
    }


if __name__ == "__main__":
    typer.run(main)
