"""How near a challenger's predictions came to what requests took: tables and drawings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from steersman.agents.offpolicy.accuracy import Accuracy
from steersman.agents.report.figures import coverage_bars, predicted_against_actual
from steersman.agents.report.page import Figure, Section, Table
from steersman.agents.report.routing import SIGNS, verdict

UNITS = {"ttft": "s", "tpot": "s", "output": "tokens"}
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "output": "output tokens"}
GROUPS = 10
LEAST_DRAWN = 100
"""Outcomes from which on a drawing by groups says something."""


def accuracy_section(served: Sequence[Accuracy], agreed: Sequence[Accuracy]) -> Section:
    """Predicted against realised.

    Args:
        served: on every request, where it was served.
        agreed: of those, where champion and challenger choose the same.
    """
    tables = [
        _table("on every request, where it was served", served),
        _table("only where both choose the same", agreed),
    ]
    figures = []
    for each in served:
        if each.outcomes >= LEAST_DRAWN:
            figures += _drawn(each)
    return Section(
        "Predicted against realised",
        paragraphs=[
            "The challenger says how long each request would take where it was served, so its "
            "predictions meet reality although it serves nothing. TTFT counts from dispatch. Median "
            "errors leave out what is too short to count; loss is the pinball loss of p50 and p90."
        ],
        tables=[table for table in tables if table.rows],
        figures=figures,
    )


def _table(caption: str, accuracies: Sequence[Accuracy]) -> Table:
    rows, marks = [], []
    for each in accuracies:
        pair = (each.champion, each.challenger)
        kind = verdict(each.loss)
        rows.append(
            [
                NAMES[each.target],
                str(each.outcomes),
                " / ".join(f"{one.mdape:.1%}" for one in pair),
                " / ".join(f"{one.within_p50:.1%}" for one in pair),
                " / ".join(f"{one.within_p90:.1%}" for one in pair),
                f"{SIGNS[kind]} {each.loss}",
            ]
        )
        marks.append(["", "", "", "", "", kind])
    header = ("quantity", "outcomes", "median error", "within p50", "within p90", "loss ratio")
    return Table(header, rows, caption=f"Champion / challenger, {caption}", marks=marks)


def _drawn(each: Accuracy) -> list[Figure]:
    """By groups of as many outcomes each, in order of what was predicted."""
    order = np.argsort(each.predicted[:, 0], kind="stable")
    parts = np.array_split(order, GROUPS)
    predicted = np.array([np.median(each.predicted[part, 0]) for part in parts])
    actual = np.array([np.median(each.actual[part]) for part in parts])
    within = {
        f"{GROUPS * (i + 1)}": float((each.actual[part] <= each.predicted[part, 1]).mean())
        for i, part in enumerate(parts)
    }
    name, unit = NAMES[each.target], UNITS[each.target]
    return [
        Figure(
            predicted_against_actual(predicted, actual, quantity=name, unit=unit),
            f"{name[0].upper()}{name[1:]} as the challenger predicts it, and as it was.",
        ),
        Figure(
            coverage_bars(within, label=f"percentile of predicted {name}", wanted=0.9),
            f"Share of {name} within the challenger's p90; the line is what should be.",
        ),
    ]
