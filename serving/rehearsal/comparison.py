"""Several policies on the same requests: the figures people compare, as rows of text.

The terminal table and the HTML report show the same rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from steersman.serving.replay_result import ReplayResult

Summary = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Measure:
    """One row of the comparison."""

    label: str
    value: Callable[[Summary], float | None]
    text: Callable[[float], str]
    lower_is_better: bool


def seconds(value: float) -> str:
    """A time for people: milliseconds below one second."""
    return f"{value * 1e3:.0f} ms" if value < 1.0 else f"{value:.2f} s"


def milliseconds(value: float) -> str:
    """A short time for people."""
    return f"{value * 1e3:.1f} ms"


def percent(value: float) -> str:
    """A share for people."""
    return f"{100 * value:.1f} %"


def not_ok(summary: Summary) -> float:
    """How many requests did not end well."""
    statuses: Mapping[str, int] = summary["statuses"]
    return float(sum(count for status, count in statuses.items() if status != "ok"))


MEASURES = (
    Measure("TTFT p50", lambda s: s["ttft_s"]["p50"], seconds, lower_is_better=True),
    Measure("TTFT p99", lambda s: s["ttft_s"]["p99"], seconds, lower_is_better=True),
    Measure("TPOT p50", lambda s: s["tpot_s"]["p50"], milliseconds, lower_is_better=True),
    Measure("TPOT p99", lambda s: s["tpot_s"]["p99"], milliseconds, lower_is_better=True),
    Measure("E2E p50", lambda s: s["e2e_s"]["p50"], seconds, lower_is_better=True),
    Measure("SLO attainment", lambda s: s["slo_attainment"], percent, lower_is_better=False),
    Measure("goodput", lambda s: s["goodput_rps"], "{:.2f} req/s".format, lower_is_better=False),
    Measure("not answered well", not_ok, "{:.0f}".format, lower_is_better=True),
)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Header, rows of cells, and which cells are the best of their row."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    best: tuple[tuple[bool, ...], ...]


def compare(results: Mapping[str, ReplayResult]) -> Comparison:
    """One column per policy; first the measures, then share per replica, then fallbacks by reason."""
    summaries = {name: result.summary() for name, result in results.items()}
    rows: list[tuple[str, ...]] = []
    best: list[tuple[bool, ...]] = []
    for measure in MEASURES:
        values = [measure.value(summary) for summary in summaries.values()]
        rows.append((measure.label, *("n/a" if v is None else measure.text(v) for v in values)))
        best.append((False, *_best(values, lower_is_better=measure.lower_is_better)))
    for replica in sorted({name for summary in summaries.values() for name in summary["share"]}):
        shares = [summary["share"].get(replica, 0.0) for summary in summaries.values()]
        rows.append((f"share of {replica}", *map(percent, shares)))
    for reason in sorted({name for summary in summaries.values() for name in summary["fallbacks"]}):
        counts = [summary["fallbacks"].get(reason, 0) for summary in summaries.values()]
        rows.append((f"fallbacks: {reason}", *map(str, counts)))
    if not any(summary["fallbacks"] for summary in summaries.values()):
        rows.append(("fallbacks", *("0" for _ in summaries)))
    best.extend((False,) * (1 + len(summaries)) for _ in rows[len(best) :])
    return Comparison(("", *summaries), tuple(rows), tuple(best))


def change(results: Mapping[str, ReplayResult], measure: str, old: str, new: str) -> str:
    """How a measure of `MEASURES` moved from one policy to another, for people: `-12 %`."""
    value = next(m.value for m in MEASURES if m.label == measure)
    before, after = (value(results[name].summary()) for name in (old, new))
    if not before or after is None or not math.isfinite(after / before):
        return "n/a"
    return f"{100 * (after / before - 1):+.0f} %"


def _best(values: Sequence[float | None], *, lower_is_better: bool) -> list[bool]:
    known = [value for value in values if value is not None]
    if len(set(known)) < 2:
        return [False] * len(values)
    winner = min(known) if lower_is_better else max(known)
    return [value == winner for value in values]
