"""J of one policy over every baseline, by the protocol of docs/evaluation.md.

::

    python benchmarks/policies.py [--quick] [--json FILE] [--bundle DIR] [--policy NAME] [--clairvoyant]
        [--jobs N]

The policy judged is the bundle's learned one, without a bundle the shipped one. It is compared with
every policy at its published constants, and with those that are tuned (`configs/policies/tuned/`), on
all standard cells; `--quick` takes four scenarios at 80 and 95 % load, 3 seeds and 3 000 requests.
`--clairvoyant` adds the references that know the future, on cells of their own: their ratio says how far
there is to go.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from steersman.agents.evaluate.constants import ALL, tuned_path
from steersman.agents.evaluate.contestants import LEARNED, contestants, open_bundle
from steersman.agents.evaluate.references import Reference
from steersman.agents.evaluate.spaces import SPACES
from steersman.agents.evaluate.standard import Part, clairvoyant, evaluate_parts, full, quick, runs_of
from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.policies import POLICY_NAMES

NAMED = {
    "vs_llmd_published": "llm-d-default",
    "vs_llmd_tuned": "llm-d-default:tuned",
    "vs_dynamo_published": "dynamo-kv",
    "vs_p2c_score": "p2c",
    "vs_marginal_tuned": "marginal-cost:tuned",
}
"""Figures that are watched, and the baseline of each."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="for watching, not for claims")
    parser.add_argument("--json", type=Path, help="write the figures here")
    parser.add_argument("--bundle", type=Path, help="trained models; default: the shipped policy")
    parser.add_argument("--policy", help="the policy judged")
    parser.add_argument("--clairvoyant", action="store_true", help="add the references")
    parser.add_argument("--jobs", type=int, default=1, help="processes that share the runs")
    options = parser.parse_args()
    models, length = open_bundle(options.bundle)
    judged = options.policy or LEARNED
    parts = quick(length) if options.quick else full(length)
    rivals = [name for name in (*POLICY_NAMES, *tuned_names(parts)) if name != judged]
    table = play([judged, *rivals], parts, models, options.jobs)
    rows = compared(table, judged, rivals)
    if options.clairvoyant:
        own = clairvoyant(length, seeds=2 if options.quick else 8)
        distance = play([judged, *Reference], own, models, options.jobs)
        name = Reference.LOOKAHEAD.value
        for figure in ("j", "j1"):
            ratio = distance.ratio(judged, name, figure=figure)
            rows.append(_row(f"{figure.upper()}_ratio.vs_clairvoyant", ratio))
        rows += [row for reference in Reference for row in distance.rows(reference.value, [judged])]
    for row in rows:
        interval = "" if row["lo"] is None else f"  [{row['lo']:.3f}, {row['hi']:.3f}]"
        print(f"{row['name']:<70}{row['value']:>8.3f}{interval}  {row['note']}")
    for cell in table.cells:
        trips = {reason: n for reason, n in table.fallbacks(judged, cell).items() if n}
        if trips:
            print(f"fallbacks of {judged}, {cell}: {trips}")
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")


def tuned_names(parts: Sequence[Part]) -> list[str]:
    """Tuned baselines whose constants are there for all these scenarios."""
    scenarios = {part.scenario.name for part in parts}
    names = [f"{p}:tuned" for p in SPACES if all(tuned_path(p, s).is_file() for s in scenarios)]
    return names + [f"{p}:tuned-once" for p in SPACES if tuned_path(p, ALL).is_file()]


def play(names: Sequence[str], parts: Sequence[Part], models: Any, jobs: int) -> EvaluationTable:
    """Run, with a line of progress."""
    progress = _progress(runs_of(len(names), parts))
    return evaluate_parts(contestants(names, models), parts, jobs=jobs, on_progress=progress)


def compared(table: EvaluationTable, judged: str, rivals: Sequence[str]) -> list[dict[str, Any]]:
    """The watched figures, the worst cell, and every ratio."""
    rows = []
    for figure in ("j", "j1"):
        for short, rival in NAMED.items():
            if rival in table.policies and rival != judged:
                ratio = table.ratio(judged, rival, figure=figure)
                rows.append(_row(f"{figure.upper()}_ratio.{short}", ratio))
    against = {cell: table.best(cell, rivals) for cell in table.cells}
    ratios = {cell: table.ratio(judged, against[cell], cells=[cell]) for cell in table.cells}
    worst = max(table.cells, key=lambda cell: ratios[cell].value)
    note = f"{worst}, against {against[worst]}"
    rows.append(_row("worst_cell.vs_best_baseline", ratios[worst], note))
    for rival in rivals:
        rows.append(_not_worse(table, judged, rival))
        rows += table.rows(rival, [judged])
        rows += table.rows(rival, [judged], figure="j1")[:1]
    return rows


def _not_worse(table: EvaluationTable, judged: str, rival: str) -> dict[str, Any]:
    verdicts = table.not_worse(judged, rival)
    return {
        "name": f"cells not worse than {rival}",
        "value": float(sum(verdict.holds for verdict in verdicts.values())),
        "lo": None,
        "hi": None,
        "unit": "cells",
        "note": f"of {len(verdicts)} cells, by 2 % with Holm's correction",
    }


def _row(name: str, ratio: Ratio, note: str = "paired bootstrap over seeds") -> dict[str, Any]:
    return {
        "name": name,
        "value": ratio.value,
        "lo": ratio.lo,
        "hi": ratio.hi,
        "unit": "ratio",
        "note": note,
    }


def _progress(total: int) -> Callable[[float], None]:
    done, started = 0.0, time.monotonic()

    def tell(runs: float) -> None:
        nonlocal done
        done += runs
        end = "\n" if done >= total - 0.5 else ""
        sys.stderr.write(f"\r{done:6.1f} of {total} runs, {time.monotonic() - started:.0f} s{end}")

    return tell


if __name__ == "__main__":
    main()
