"""What the queue in the router does at 80 to 150 % load, under every policy, class by class.

::

    python benchmarks/queueing.py [--quick] [--json FILE]

Classes P0 to P3 mixed 40 : 20 : 25 : 15. Each policy plays the same arrivals without and with the queue
(`agents/queueing`, at its defaults), in front of engines that serve first come, first served (vLLM's
default) and of engines that look at priorities themselves. `--quick` takes one scenario, one seed and
short runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from steersman.agents.evaluate.queueing import QueueRun, compare_queues
from steersman.agents.evaluate.run import Protocol
from steersman.agents.queueing.settings import LEVELS, QueueSettings
from steersman.env.scenario import load_scenario

POLICIES = ("p2c", "llm-d-default", "marginal-cost")
QUEUES = {"none": QueueSettings(enabled=False), "queue": QueueSettings(enabled=True)}
ENGINES = {"fcfs": False, "priority": True}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--scenarios", default="", help="separated by commas")
    options = parser.parse_args()
    names = options.scenarios or ("homogeneous" if options.quick else "homogeneous,mixed,prefix")
    protocol = Protocol(
        loads=(0.8, 1.0, 1.2, 1.5) if options.quick else (0.6, 0.8, 1.0, 1.2, 1.5),
        seeds=(0,) if options.quick else (0, 1, 2),
        requests=1,
        window_s=45.0 if options.quick else 240.0,
        warmup_s=20.0 if options.quick else 60.0,
    )
    rows: list[dict[str, Any]] = []
    print(f"{'':46}{'goodput':>9} {'J':>7} {'J1':>7}   p99 TTFT of P0..P3, s{'':14}longest  refused")
    for name in names.split(","):
        for engine, priorities in ENGINES.items():
            where = f"{name}, {engine}"
            runs = compare_queues(
                load_scenario(name),
                POLICIES,
                QUEUES,
                protocol,
                priorities=priorities,
                on_progress=_progress(where),
            )
            rows += _rows(runs, where, protocol.loads)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _rows(runs: Sequence[QueueRun], where: str, loads: Sequence[float]) -> list[dict[str, Any]]:
    rows = []
    for load in loads:
        for policy in POLICIES:
            cell = f"{where}, {load:.0%}, {policy}"
            found = {
                queue: [r for r in runs if (r.load, r.policy, r.queue) == (load, policy, queue)]
                for queue in QUEUES
            }
            for queue, own in found.items():
                print(_line(f"{cell}, {queue}", own))
                rows += [
                    _row(f"goodput_rps.{queue}, {cell}", [r.figures.goodput_rps for r in own], "1/s"),
                    _row(f"J.{queue}, {cell}", [r.figures.j for r in own], ""),
                    _row(f"longest_wait_s.{queue}, {cell}", [_longest(r) for r in own], "s"),
                    _row(f"unserved.{queue}, {cell}", [_share(r, "unserved") for r in own], "share"),
                    _row(f"refused.{queue}, {cell}", [_share(r, "refused") for r in own], "share"),
                ]
                for level in range(LEVELS):
                    p99 = [r.classes[level].ttft_p99_s for r in own]
                    met = [r.classes[level].slo_attainment for r in own]
                    rows.append(_row(f"p99_ttft_s.P{level}.{queue}, {cell}", p99, "s"))
                    rows.append(_row(f"slo_attainment.P{level}.{queue}, {cell}", met, "share"))
            pairs = list(zip(found["queue"], found["none"], strict=True))
            p0 = [q.classes[0].ttft_p99_s / n.classes[0].ttft_p99_s for q, n in pairs]
            gain = [q.figures.goodput_rps - n.figures.goodput_rps for q, n in pairs]
            rows.append(_row(f"p99_ttft_ratio.P0, {cell}", p0, "ratio"))
            rows.append(_row(f"goodput_gain_rps, {cell}", gain, "1/s"))
    return rows


def _line(name: str, runs: Sequence[QueueRun]) -> str:
    p99 = "".join(f"{np.mean([r.classes[level].ttft_p99_s for r in runs]):9.2f}" for level in range(4))
    figures = [r.figures for r in runs]
    goodput, j, j1 = (np.mean([getattr(f, key) for f in figures]) for key in ("goodput_rps", "j", "j1"))
    longest, refused = max(map(_longest, runs)), np.mean([_share(r, "refused") for r in runs])
    return f"{name:<46}{goodput:9.1f} {j:7.2f} {j1:7.2f}{p99}{longest:9.1f}{refused:9.3f}"


def _longest(run: QueueRun) -> float:
    return float(np.nanmax([figures.ttft_longest_s for figures in run.classes]))


def _share(run: QueueRun, key: str) -> float:
    total = sum(figures.requests for figures in run.classes)
    count = sum(float(getattr(figures, key)) * figures.requests for figures in run.classes)
    return count / max(total, 1)


def _row(name: str, values: Sequence[float], unit: str) -> dict[str, Any]:
    note = f"mean of {len(values)} seeds, lo and hi are the least and the most"
    low, high = float(np.min(values)), float(np.max(values))
    return {
        "name": name,
        "value": float(np.mean(values)),
        "lo": low,
        "hi": high,
        "unit": unit,
        "note": note,
    }


def _progress(where: str) -> Callable[[float], None]:
    done = 0.0

    def tell(runs: float) -> None:
        nonlocal done
        done += runs
        print(f"\r{where}: {done:.0f} runs", end="\r", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    main()
