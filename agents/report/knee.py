"""Load-to-knee curves: figures of several policies over the load, where each of them gives way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steersman.agents.evaluate.comparisons import P99
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.report.figures import Values, curves
from steersman.agents.report.page import Figure

LINES = 7
"""Policies drawn, the judged one included; more are not told apart."""
FAMILIAR = ("round-robin", "p2c", "llm-d-default", "dynamo-kv")
"""Baselines that are drawn before others, wherever they were run."""
_FIGURES = (
    ("j", "J", True, 1.0),
    ("j1", "J1", True, 1.0),
    (P99, "p99 TTFT, s", True, 1.0),
    ("goodput_rps", "goodput, requests/s", False, 1.0),
    ("slo_attainment", "SLO met, %", False, 100.0),
)


def knee_figures(table: EvaluationTable, judged: str, rivals: Sequence[str]) -> list[Figure]:
    """J, J1, p99 TTFT, goodput and SLO attainment over the load; none with fewer than two loads.

    Args:
        table: of one scenario.
    """
    cells = sorted(table.cells, key=lambda cell: cell.load)
    if len(cells) < 2:
        return []
    loads = 100.0 * np.array([cell.load for cell in cells])
    drawn = [judged, *_chosen(table, rivals)]

    def line(policy: str, figure: str, scale: float) -> tuple[Values, Values]:
        return loads, scale * np.array([table.mean(policy, cell, figure) for cell in cells])

    return [
        Figure(
            curves(
                {policy: line(policy, figure, scale) for policy in drawn},
                x_label="load over saturation, %",
                y_label=label,
                log_y=log,
                lead=True,
            ),
            f"{label.partition(',')[0]} over load",
        )
        for figure, label, log, scale in _FIGURES
    ]


def _chosen(table: EvaluationTable, rivals: Sequence[str]) -> list[str]:
    """The best baselines over all loads and the familiar ones, in the order of the rivals."""
    ranked = table.ranked(rivals)
    wanted = [*ranked[:2], *(name for name in FAMILIAR if name in rivals), *ranked]
    chosen = set(list(dict.fromkeys(wanted))[: LINES - 1])
    return [name for name in rivals if name in chosen]
