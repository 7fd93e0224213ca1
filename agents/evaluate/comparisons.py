"""The figures that are watched, of one judged policy over its baselines: rows of a benchmark file.

A row is `{"name", "value", "lo", "hi", "unit", "note"}`; `lo` and `hi` are its 95 % interval, or None.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from steersman.agents.evaluate.references import Reference
from steersman.agents.evaluate.replicas import MOST, Needed
from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import Cell, EvaluationTable

Row = dict[str, Any]

WATCHED = {
    "vs_llmd_published": "llm-d-default",
    "vs_llmd_tuned": "llm-d-default:tuned",
    "vs_dynamo_published": "dynamo-kv",
    "vs_p2c_score": "p2c",
    "vs_marginal_tuned": "marginal-cost:tuned",
}
"""Figures with a name of their own, and the baseline of each."""
P99 = "ttft_p99_s"


def watched(table: EvaluationTable, judged: str, rivals: Sequence[str]) -> list[Row]:
    """J and J1 over the baselines of `WATCHED` that were run, and the worst cells, at usual loads; and
    the worst cell beyond saturation.
    """
    whole, table = table, table.usual()
    rows = []
    for figure in ("j", "j1"):
        for short, rival in WATCHED.items():
            if rival in rivals:
                ratio = table.ratio(judged, rival, figure=figure)
                rows.append(ratio_row(f"{figure.upper()}_ratio.{short}", ratio))
    for short, rival in WATCHED.items():
        if rival in rivals and _seeds(table, judged) > 1:
            rows.append(worse_cells(table, judged, rival, f"cells_worse.{short}"))
    if rivals:
        rows.append(worst_cell(table, judged, rivals, "worst_cell.vs_best_baseline"))
        name = "worst_cell.p99_ttft_vs_best_baseline"
        rows.append(worst_cell(table, judged, rivals, name, figure=P99))
        over = whole.only([cell for cell in whole.cells if cell.load > 1.0])
        if over.runs:
            rows.append(worst_cell(over, judged, rivals, "overload.vs_best_baseline"))
    return rows


def each_rival(table: EvaluationTable, judged: str, rivals: Sequence[str]) -> list[Row]:
    """J over every baseline, cell by cell and summed up; J1 summed up at usual loads."""
    usual = table.usual()
    rows = []
    for rival in rivals:
        if _seeds(usual, judged) > 1:
            rows.append(worse_cells(usual, judged, rival, f"cells worse than {rival}"))
        rows += table.rows(rival, [judged])
        rows += usual.rows(rival, [judged], figure="j1")[:1]
    return rows


def over_best(
    table: EvaluationTable, judged: str, rivals: Sequence[str], cell: Cell, figure: str = "j"
) -> tuple[str, Ratio]:
    """The baseline with the least J in a cell, and the judged policy's ratio of a figure to it."""
    best = table.best(cell, rivals)
    return best, table.ratio(judged, best, figure=figure, cells=[cell])


def worst_cell(
    table: EvaluationTable, judged: str, rivals: Sequence[str], name: str, *, figure: str = "j"
) -> Row:
    """The largest ratio of a figure to the baseline with the least J in the same cell."""
    found = {cell: over_best(table, judged, rivals, cell, figure) for cell in table.cells}
    worst = max(found, key=lambda cell: found[cell][1].value)
    best, ratio = found[worst]
    return ratio_row(name, ratio, f"{worst}, against {best}, the baseline with the least J there")


def worse_cells(table: EvaluationTable, judged: str, rival: str, name: str) -> Row:
    """In how many cells it is not shown to be no worse (`EvaluationTable.not_worse`)."""
    verdicts = table.not_worse(judged, rival)
    return {
        "name": name,
        "value": float(sum(not verdict.holds for verdict in verdicts.values())),
        "lo": None,
        "hi": None,
        "unit": "cells",
        "note": f"of {len(verdicts)}: not shown to be within 2 % (Holm-corrected)",
    }


def distance(table: EvaluationTable, judged: str) -> list[Row]:
    """How far the references are, on cells of their own.

    `vs_clairvoyant` is over the reference that has the least J over all cells, which the note names;
    `vs_lookahead` over one-step lookahead. None of them is a bound: `cells_lowest` says in how many
    cells nobody has less than the best of them.
    """
    best = table.ranked([reference.value for reference in Reference])[0]
    lowest = sum(table.best(cell, table.policies) == best for cell in table.cells)
    rows: list[Row] = [
        {
            "name": "clairvoyant.cells_lowest",
            "value": float(lowest),
            "lo": None,
            "hi": None,
            "unit": "cells",
            "note": f"of {len(table.cells)}: {best} has the least J of all here",
        }
    ]
    for short, name in (("clairvoyant", best), ("lookahead", Reference.LOOKAHEAD.value)):
        for figure in ("j", "j1"):
            ratio = table.ratio(judged, name, figure=figure)
            rows.append(ratio_row(f"{figure.upper()}_ratio.vs_{short}", ratio, f"over {name}"))
    return rows + [row for reference in Reference for row in table.rows(reference.value, [judged])]


def replica_rows(scenario: str, needed: Mapping[str, Needed], judged: str) -> list[Row]:
    """Replicas of the judged policy over each other's, round robin's under a name of its own."""
    rows = []
    for name, other in needed.items():
        if name == judged:
            continue
        plain = f"replicas_ratio.{scenario}"
        title = plain if name == "round-robin" else f"{plain} over {name}"
        note = f"{needed[judged].mean:.2f} instead of {other.mean:.2f} replicas"
        if other.beyond:
            note += f"; {MOST} do not suffice for {name} in {other.beyond} of {len(other.by_seed)} runs"
        rows.append(ratio_row(title, needed[judged].over(other), note))
    return rows


def ratio_row(name: str, ratio: Ratio, note: str = "paired bootstrap over seeds") -> Row:
    """A ratio as a row."""
    return {
        "name": name,
        "value": ratio.value,
        "lo": ratio.lo,
        "hi": ratio.hi,
        "unit": "ratio",
        "note": note,
    }


def _seeds(table: EvaluationTable, policy: str) -> int:
    return min(len(table.by_seed(policy, cell)) for cell in table.cells)
