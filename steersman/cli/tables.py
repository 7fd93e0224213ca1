"""Evaluation tables for people."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from steersman.cli.common import console

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from steersman.agents.evaluate.predictions import Quality
    from steersman.agents.evaluate.statistics import Ratio
    from steersman.agents.evaluate.table import Cell, EvaluationTable


PIPED_WIDTH = 120
"""Columns of a table that is written to a file or a pipe."""


def facts(title: str, rows: Iterable[tuple[str, str]]) -> Table:
    """Names and what is to be said of each, under each other."""
    table = Table(title=Text(title), show_header=False, title_justify="left")
    table.add_column(style="bold")
    table.add_column()
    for name, value in rows:
        table.add_row(name, Text(value))
    return table


def comparison(table: EvaluationTable, cell: Cell) -> Table:
    """All policies in one cell: means over seeds, and the J ratio to the first policy."""
    baseline = table.policies[0]
    seeds = len(table.by_seed(baseline, cell))
    requests = int(table.by_seed(baseline, cell, "requests").sum())
    cached = any(table.mean(policy, cell, "prefix_hit_rate") > 0 for policy in table.policies)
    shown = Table(
        title=f"{cell}: {requests} requests, {seeds} seed{'s' if seeds > 1 else ''}",
        caption="J: weighted latency over SLO, 2 more for a miss; lower is better (J1: all weights 1). "
        "Times: mean / p99.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    columns = ["J", f"over {baseline}", "J1", "SLO met", "goodput/s", "TTFT ms", "TPOT ms", "E2E s"]
    shown.add_column("policy", no_wrap=True)
    for column in columns + ["cached"] * cached:
        shown.add_column(column, justify="right")
    for policy in table.policies:
        mean = partial(table.mean, policy, cell)
        row = [
            f"{mean('j'):.3f}",
            "" if policy == baseline else interval(table.ratio(policy, baseline, cells=[cell])),
            f"{mean('j1'):.3f}",
            f"{mean('slo_attainment'):.1%}",
            f"{mean('goodput_rps'):.1f}",
            f"{1e3 * mean('ttft_mean_s'):.0f} / {1e3 * mean('ttft_p99_s'):.0f}",
            f"{1e3 * mean('tpot_mean_s'):.1f} / {1e3 * mean('tpot_p99_s'):.1f}",
            f"{mean('e2e_mean_s'):.1f} / {mean('e2e_p99_s'):.1f}",
        ]
        shown.add_row(policy, *row, *[f"{mean('prefix_hit_rate'):.0%}"] * cached)
    return shown


def ratios(table: EvaluationTable, policy: str, baselines: list[str]) -> Table:
    """J of one policy over each baseline, per cell and over each group of cells."""
    shown = Table(
        title=f"J of {policy} over each baseline (95 % interval)",
        caption=f"Under 1, {policy} is better. Paired bootstrap over seeds within cells.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    shown.add_column("cell", no_wrap=True)
    shown.add_column("J / J1", justify="right")
    for baseline in baselines:
        shown.add_column(baseline, justify="right")
    for cell in table.cells:
        row = [interval(table.ratio(policy, baseline, cells=[cell])) for baseline in baselines]
        shown.add_row(str(cell), _costs(table, policy, cell), *row)
    shown.add_section()
    for where, cells in table.groups().items():
        row = [interval(table.ratio(policy, baseline, cells=cells)) for baseline in baselines]
        shown.add_row(where, "", *row)
    return shown


def qualities(found: list[Quality]) -> Table:
    """Predictors side by side."""
    shown = Table(
        title="Predictions on unseen arrivals",
        caption="MdAPE: median of |p50 - actual| / actual. Coverage: share of actual values under p90.",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
    )
    for column in ("quantity", "where", "predictor"):
        shown.add_column(column, no_wrap=True)
    for column in ("MdAPE", "coverage p90", "pinball", "cases"):
        shown.add_column(column, justify="right")
    for quality in found:
        digits = 1 if quality.quantity == "output" else 4
        shown.add_row(
            quality.quantity,
            quality.where,
            quality.predictor,
            f"{quality.mdape:.1%}",
            f"{quality.coverage_p90:.1%}",
            f"{quality.pinball:.{digits}f}",
            str(quality.cases),
        )
    return shown


def fallback_notes(table: EvaluationTable, cell: Cell) -> Iterator[str]:
    """A line for every guarded policy of a cell: how often, and why, the guard stepped in."""
    for policy in table.policies:
        counts = {reason: n for reason, n in table.fallbacks(policy, cell).items() if n}
        if table.fallbacks(policy, cell):
            why = ", ".join(f"{reason} {n}" for reason, n in counts.items()) or "none"
            yield f"fallbacks of {policy}, {cell}: {why}"


def _costs(table: EvaluationTable, policy: str, cell: Cell) -> str:
    return f"{table.mean(policy, cell):.3f} / {table.mean(policy, cell, 'j1'):.3f}"


def interval(ratio: Ratio) -> str:
    """A ratio with its interval, compact."""
    return f"{ratio.value:.3f} [{ratio.lo:.3f}–{ratio.hi:.3f}]"


def show(table: Table) -> None:
    """Print a table; in full where the output is not a terminal."""
    if console.is_terminal:
        console.print(table)
    else:
        Console(file=console.file, width=PIPED_WIDTH).print(table)
