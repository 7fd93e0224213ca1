"""J of one policy over every baseline, by the protocol of docs/evaluation.md.

::

    python benchmarks/policies.py [--quick] [--json FILE] [--report FILE] [--bundle DIR] [--policy NAME]
        [--apart] [--no-clairvoyant] [--no-replicas] [--jobs N] [--record FILE]

The policy judged is the bundle's learned one, without a bundle the shipped one. It is compared with
every policy at its published constants, and with those that are tuned (`configs/policies/tuned/`), on
all standard cells; `--quick` takes four scenarios at 80 and 95 % load, 3 seeds and 3 000 requests.
The references that know the future are played on cells of their own, and their ratio says how far there
is to go; `--no-clairvoyant` leaves them out. `--apart` adds the loads beside the standard ones (40, 105,
120 %), for curves to the knee and beyond. The replicas for equal goodput are counted on pools of 4 to
32; `--no-replicas` leaves them out. What `--record` keeps is not run again by the same code, so that the
hours of a full run may be interrupted.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from steersman.agents.evaluate.comparisons import Row, distance, each_rival, replica_rows, watched
from steersman.agents.evaluate.constants import ALL, tuned_path
from steersman.agents.evaluate.contestants import LEARNED, contestants, open_bundle
from steersman.agents.evaluate.record import RunRecord
from steersman.agents.evaluate.references import Reference
from steersman.agents.evaluate.replicas import replicas_needed
from steersman.agents.evaluate.spaces import SPACES
from steersman.agents.evaluate.standard import (
    Part,
    apart,
    clairvoyant,
    evaluate_parts,
    full,
    quick,
    replica_pools,
    runs_of,
)
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.policies import POLICY_NAMES
from steersman.agents.report.page import write
from steersman.agents.report.routing import RoutingReport
from steersman.predictors.bundle import Bundle

COUNTED = ("round-robin", "p2c", "llm-d-default", "marginal-cost")
"""Baselines whose replicas are counted."""


def main() -> None:
    """Measure and print."""
    options = arguments()
    models, length = open_bundle(options.bundle)
    judged = options.policy or LEARNED
    parts = quick(length) if options.quick else full(length)
    rivals = [name for name in (*POLICY_NAMES, *tuned_names(parts)) if name != judged]
    if options.apart:
        parts += apart(length, brief=options.quick)
    record = RunRecord(options.record, models.version if models else "") if options.record else None
    table = play([judged, *rivals], parts, models, options.jobs, record)
    rows = watched(table, judged, rivals)
    if not options.no_clairvoyant:
        own = clairvoyant(length, seeds=2 if options.quick else 8)
        rows += distance(play([judged, *Reference], own, models, options.jobs, record), judged)
    if not options.no_replicas:
        pools = replica_pools(length, brief=options.quick)
        rows += counted(judged, COUNTED[:1] if options.quick else COUNTED, pools, models, options.jobs)
    rows += each_rival(table, judged, rivals)
    tell(rows, table, judged)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    if options.report:
        command = shlex.join(["python", "benchmarks/policies.py", *sys.argv[1:]])
        report = RoutingReport(judged, rivals, table, rows, commands=[command])
        write(report.page(), options.report)


def arguments() -> argparse.Namespace:
    """The options."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--report", type=Path, help="write an HTML page here")
    parser.add_argument("--bundle", type=Path, help="trained models; default: the shipped policy")
    parser.add_argument("--policy", help="the policy judged")
    parser.add_argument("--no-clairvoyant", action="store_true", help="leave out the references")
    parser.add_argument("--apart", action="store_true", help="add loads of 40, 105 and 120 %%")
    parser.add_argument("--no-replicas", action="store_true", help="leave out the replicas needed")
    parser.add_argument("--record", type=Path, help="keep finished runs here, to go on from")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="processes that share the runs"
    )
    return parser.parse_args()


def tuned_names(parts: Sequence[Part]) -> list[str]:
    """Tuned baselines whose constants are there for all these scenarios."""
    scenarios = {part.scenario.name for part in parts}
    names = [f"{p}:tuned" for p in SPACES if all(tuned_path(p, s).is_file() for s in scenarios)]
    return names + [f"{p}:tuned-once" for p in SPACES if tuned_path(p, ALL).is_file()]


def play(
    names: Sequence[str],
    parts: Sequence[Part],
    models: Bundle | None,
    jobs: int,
    record: RunRecord | None = None,
) -> EvaluationTable:
    """Run, with a line of progress."""
    progress = _progress(runs_of(len(names), parts))
    return evaluate_parts(
        contestants(names, models), parts, jobs=jobs, on_progress=progress, record=record
    )


def counted(
    judged: str, others: Sequence[str], pools: Sequence[Part], models: Bundle | None, jobs: int
) -> list[Row]:
    """Replicas for equal goodput."""
    names = [judged, *(name for name in others if name != judged)]
    rows: list[Row] = []
    for part in pools:
        needed = replicas_needed(
            contestants(names, models),
            part.scenario,
            part.protocol,
            jobs=jobs,
            on_progress=_progress(None),
        )
        rows += replica_rows(part.scenario.name, needed, judged)
    return rows


def tell(rows: Sequence[Row], table: EvaluationTable, judged: str) -> None:
    """Print the figures, and why the guard stepped in."""
    for row in rows:
        interval = "" if row["lo"] is None else f"  [{row['lo']:.3f}, {row['hi']:.3f}]"
        print(f"{row['name']:<70}{row['value']:>8.3f}{interval}  {row['note']}")
    for cell in table.cells:
        trips = {reason: n for reason, n in table.fallbacks(judged, cell).items() if n}
        if trips:
            print(f"fallbacks of {judged}, {cell}: {trips}")


def _progress(total: int | None) -> Callable[[float], None]:
    """Runs done on standard error; None where it is not known how many there will be."""
    done, started = 0.0, time.monotonic()

    def show(runs: float) -> None:
        nonlocal done
        done += runs
        of = "" if total is None else f" of {total}"
        end = "\n" if total is not None and done >= total - 0.5 else ""
        sys.stderr.write(f"\r{done:6.1f}{of} runs, {time.monotonic() - started:.0f} s{end}")

    return show


if __name__ == "__main__":
    main()
