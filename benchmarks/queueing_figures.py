"""What both benchmarks of the queue print: figures of a few seeds with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t as student

from steersman.agents.evaluate.queueing import PressureFigures

Row = dict[str, Any]

PRESSURE_SHARES = (0.6, 0.3, 0.06, 0.04)
"""Of P0 to P3, where the higher two leave nothing to the others."""


def mean_row(name: str, values: Sequence[float], unit: str) -> Row:
    """The mean of a figure, or of differences, over seeds, and Student's 95 % interval of it."""
    mean, lo, hi = _interval(values)
    return _row(name, mean, lo, hi, unit, len(values))


def ratio_row(name: str, ours: Sequence[float], theirs: Sequence[float]) -> Row:
    """The geometric mean of ratios, seed by seed, and its 95 % interval, by Student on the logs."""
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(np.asarray(ours, dtype=np.float64) / np.asarray(theirs, dtype=np.float64))
    mean, lo, hi = (None if bound is None else float(np.exp(bound)) for bound in _interval(logs))
    return _row(name, mean, lo, hi, "ratio", len(logs))


def interval_text(row: Row, form: str = "{:.2f}") -> str:
    """A row's value and interval in a table."""
    value = float("nan") if row["value"] is None else row["value"]
    if row["lo"] is None:
        return form.format(value)
    return f"{form.format(value)} [{form.format(row['lo'])}, {form.format(row['hi'])}]"


def print_pressure(title: str, classes: Sequence[PressureFigures]) -> None:
    """A line for each class."""
    print(title)
    for level, found in enumerate(classes):
        print(
            f"  P{level}: {found.requests:5} requests, {found.begun:6.1%} begun, "
            f"{found.refused:6.1%} refused, longest wait {found.longest_wait_s:6.1f} s"
        )


def pressure_rows(cell: str, classes: Sequence[PressureFigures]) -> list[Row]:
    """The same as rows."""
    rows = []
    for level, found in enumerate(classes):
        where = f"P{level}.{cell}"
        rows += [
            _row(f"pressure.begun.{where}", found.begun, None, None, "share", 1),
            _row(f"pressure.refused.{where}", found.refused, None, None, "share", 1),
            _row(f"pressure.longest_wait_s.{where}", found.longest_wait_s, None, None, "s", 1),
        ]
    return rows


def _interval(
    values: Sequence[float] | NDArray[np.float64],
) -> tuple[float | None, float | None, float | None]:
    known = np.asarray(values, dtype=np.float64)
    if not np.isfinite(known).all():
        return None, None, None
    mean = float(known.mean())
    if len(known) < 2:
        return mean, None, None
    half = float(student.ppf(0.975, len(known) - 1) * known.std(ddof=1) / np.sqrt(len(known)))
    return mean, mean - half, mean + half


def _row(
    name: str, value: float | None, lo: float | None, hi: float | None, unit: str, seeds: int
) -> Row:
    note = f"{seeds} seed" if seeds == 1 else f"mean of {seeds} paired seeds, Student's 95 % interval"
    if value is not None and not np.isfinite(value):
        value = None
    return {"name": name, "value": value, "lo": lo, "hi": hi, "unit": unit, "note": note}
