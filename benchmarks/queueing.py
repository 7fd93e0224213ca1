"""What the queue in the router does at 80 to 150 % load, under every policy, class by class.

::

    python benchmarks/queueing.py [--quick] [--json FILE] [--part load|starvation]

Classes P0 to P3 mixed 40 : 20 : 25 : 15. Each policy plays the same arrivals without and with the queue
(`agents/queueing`, at its defaults), in front of engines that serve first come, first served (vLLM's
default) and of engines that look at priorities themselves; and P0's requests alone, without the other
classes' (`alone`): about the best that any queue could do for them. Then starvation: P0 and P1 (60 and
30 %) at 150 % load leave nothing to the others, with ageing and without. `--quick` takes one scenario,
three seeds and short runs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

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

from steersman.agents.evaluate.queueing import QueueRun, compare_queues
from steersman.agents.evaluate.run import Protocol
from steersman.agents.queueing.settings import LEVELS, QueueSettings
from steersman.env.scenario import load_scenario

POLICIES = ("p2c", "llm-d-default", "marginal-cost")
QUEUES = {"none": QueueSettings(enabled=False), "queue": QueueSettings(enabled=True)}
ENGINES = {"fcfs": False, "priority": True}


AGEING = {
    "ageing": QueueSettings(enabled=True),
    "no ageing": QueueSettings(enabled=True, aged_share=0.0, kept_share=0.0),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--scenarios", default="", help="separated by commas")
    parser.add_argument("--loads", default="", help="of saturation, separated by commas")
    parser.add_argument("--part", choices=("all", "load", "starvation"), default="all")
    options = parser.parse_args()
    names = options.scenarios or ("homogeneous" if options.quick else "homogeneous,mixed,prefix")
    loads = options.loads or ("0.8,1.0,1.2,1.5" if options.quick else "0.6,0.8,1.0,1.2,1.5")
    protocol = Protocol(
        loads=tuple(map(float, loads.split(","))),
        seeds=tuple(range(3 if options.quick else 5)),
        requests=1,
        window_s=30.0 if options.quick else 240.0,
        warmup_s=20.0 if options.quick else 60.0,
    )
    rows: list[Row] = []
    if options.part != "starvation":
        for name in names.split(","):
            rows += _loads(name, protocol)
    if options.part != "load":
        rows += _starvation(names.split(",")[0], quick=options.quick)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def _loads(name: str, protocol: Protocol) -> list[Row]:
    rows = []
    print(f"{'':46}{'goodput':>9} {'J':>7} {'J1':>7}   p99 TTFT of P0..P3, s{'':14}longest  refused")
    scenario = load_scenario(name)
    alone = compare_queues(
        scenario, POLICIES, {"alone": QUEUES["none"]}, protocol, priorities=False, only=0
    )
    for engine, priorities in ENGINES.items():
        where = f"{name}, {engine}"
        tell = _progress(where)
        runs = compare_queues(
            scenario, POLICIES, QUEUES, protocol, priorities=priorities, on_progress=tell
        )
        rows += _rows([*runs, *alone], where, protocol.loads)
    return rows


def _starvation(name: str, *, quick: bool) -> list[Row]:
    protocol = Protocol(
        loads=(1.5,),
        seeds=(0,),
        requests=1,
        window_s=60.0 if quick else 120.0,
        warmup_s=20.0,
        tail_s=160.0 if quick else 300.0,
        drain_s=0.0,
    )
    rows = []
    for run in compare_queues(
        load_scenario(name),
        ("marginal-cost",),
        AGEING,
        protocol,
        priorities=False,
        shares=PRESSURE_SHARES,
    ):
        title = f"{name}, 150 %, {run.policy}, {run.queue}: until {protocol.tail_s:.0f} s after the last"
        print_pressure(title, run.pressure)
        rows += pressure_rows(f"{run.queue}, {name}, 150%, {run.policy}", run.pressure)
    return rows


def _rows(runs: Sequence[QueueRun], where: str, loads: Sequence[float]) -> list[Row]:
    rows = []
    for load in loads:
        for policy in POLICIES:
            cell = f"{where}, {load:.0%}, {policy}"
            found = {
                queue: [r for r in runs if (r.load, r.policy, r.queue) == (load, policy, queue)]
                for queue in (*QUEUES, "alone")
            }
            for queue in QUEUES:
                print(_line(f"{cell}, {queue}", found[queue]))
                rows += _figures(f"{queue}, {cell}", found[queue])
            p0_s = {queue: [r.classes[0].ttft_p99_s for r in own] for queue, own in found.items()}
            gains = [
                q.figures.goodput_rps - n.figures.goodput_rps
                for q, n in zip(found["queue"], found["none"], strict=True)
            ]
            compared = [
                ratio_row(f"p99_ttft_ratio.P0, {cell}", p0_s["queue"], p0_s["none"]),
                mean_row(f"goodput_gain_rps, {cell}", gains, "1/s"),
                ratio_row(f"p99_ttft_ratio.P0 alone, {cell}", p0_s["alone"], p0_s["none"]),
            ]
            ratio, gain, alone = map(interval_text, compared)
            print(f"    P0's p99 {ratio} of that without, P0 alone {alone}; goodput {gain} more")
            rows += compared
    return rows


def _figures(cell: str, own: Sequence[QueueRun]) -> list[Row]:
    rows = [
        mean_row(f"goodput_rps.{cell}", [r.figures.goodput_rps for r in own], "1/s"),
        mean_row(f"J.{cell}", [r.figures.j for r in own], ""),
        mean_row(f"J1.{cell}", [r.figures.j1 for r in own], ""),
        mean_row(f"longest_wait_s.{cell}", [_longest(r) for r in own], "s"),
        mean_row(f"unserved.{cell}", [_share(r, "unserved") for r in own], "share"),
        mean_row(f"refused.{cell}", [_share(r, "refused") for r in own], "share"),
    ]
    for level in range(LEVELS):
        classes = [r.classes[level] for r in own]
        rows += [
            mean_row(f"p99_ttft_s.P{level}.{cell}", [c.ttft_p99_s for c in classes], "s"),
            mean_row(f"slo_attainment.P{level}.{cell}", [c.slo_attainment for c in classes], "share"),
        ]
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


def _progress(where: str) -> Callable[[float], None]:
    done = 0.0

    def tell(runs: float) -> None:
        nonlocal done
        done += runs
        print(f"\r{where}: {done:.0f} runs", end="\r", file=sys.stderr, flush=True)

    return tell


if __name__ == "__main__":
    main()
