"""The story on one page, and its figures as rows."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evidence import Evidence
from steersman.agents.report import figures
from steersman.agents.report.page import Figure, Page, Section, Table
from steersman.serving.drill.figures import Row, p99_ttft_s, row
from steersman.serving.drill.settings import RehearsalSettings
from steersman.serving.drill.story import CHANGED, RENEWED, Act, Story

Values = NDArray[np.float64]

WINDOW_S = 8.0
STEP_S = 2.0


_SHORT = {
    "drift.detected_after_requests": "until drift was seen",
    "p99_ttft_ratio.after_promotion": "p99 TTFT, after / before",
    "p99_ttft_ratio.in_canary": "p99 TTFT, side by side",
    "bad_challenger.requests_harmed_fraction": "harmed by the bad one",
    "rollback.seconds": "rollback",
    "log.cpu_fraction": "CPU of the log",
    "ope.dr_error_known_case": "error of DR",
}
"""Names of figures at the top of the page."""
MOST_DRAWN = 3.0
"""J ratios beyond it are told, not drawn."""


def rows(story: Story) -> list[Row]:
    """The figures of `rehearsal.json`."""
    found, harm = story.drift, story.harm
    return [
        row(
            "drift.detected_after_requests",
            None if found is None else float(found.requests),
            "requests",
            "never" if found is None else found.what,
        ),
        row(
            "p99_ttft_ratio.after_promotion",
            None if story.p99 is None else story.p99.ratio,
            "ratio",
            "the same requests after and before, one run each"
            + ("" if story.promoted else "; not all gates were passed"),
            lo=None if story.p99 is None else story.p99.lo,
            hi=None if story.p99 is None else story.p99.hi,
        ),
        row(
            "p99_ttft_ratio.in_canary",
            _side_by_side(story),
            "ratio",
            "challenger over champion, at the same time, in the last stage in which both had traffic",
        ),
        row(
            "bad_challenger.requests_harmed_fraction",
            harm.fraction,
            "share",
            f"{harm.harmed} of {harm.requests}, {harm.served} served by it; "
            f"stopped by {story.stopped or 'nobody'}",
        ),
        row("rollback.seconds", story.rollback_s, "s", "from the command until the router serves"),
        row("log.cpu_fraction", story.log_cpu, "share", "its processor time over the router's other"),
        row(
            "ope.dr_error_known_case",
            story.dr_error,
            "share",
            "where the answer is known",
        ),
    ]


def _side_by_side(story: Story) -> float | None:
    """Of the challenger that was retrained."""
    version = "" if story.made is None else story.made.bundle.version
    found = [
        one.figures["p99_ttft_ratio"]
        for one in story.transitions
        if one.challenger == version and "p99_ttft_ratio" in one.figures
    ]
    return found[-1] if found else None


def page(story: Story, settings: RehearsalSettings, commands: Sequence[str] = ()) -> Page:
    """Everything, in the order in which it happened."""
    measured = rows(story)
    return Page(
        title="Rehearsal: from drift to a better model, and back",
        subtitle="A real router in front of emulated backends, requests of a real trace over HTTP. The "
        "hardware changes, and nobody tells the router.",
        highlights=[(_text(one), _SHORT[str(one["name"])]) for one in measured],
        sections=[
            Section(
                "What happened",
                paragraphs=[f"{what}: {sentence}." for what, sentence in story.told],
                figures=[
                    Figure(
                        figures.curves(
                            _over_time(story.acts), x_label="minutes", y_label="TTFT p90 (s)", log_y=True
                        ),
                        f"TTFT p90 of the requests within {WINDOW_S:g} s, act by act.",
                    )
                ],
            ),
            _acts(story),
            _changed(story),
            _evidence(story),
            _canary(story),
            Section(
                "Figures",
                paragraphs=[
                    f"{settings.judged} requests were judged. These are single runs of one machine: the "
                    "paired comparisons over streams, with their intervals, are in the evidence above.",
                ],
                tables=[
                    Table(
                        ("figure", "value", "note"),
                        [(str(one["name"]), _text(one), str(one["note"])) for one in measured],
                    )
                ],
                commands=commands,
            ),
        ],
    )


def _acts(story: Story) -> Section:
    table = []
    for act in _whole(story.acts):
        result = act.result
        table.append(
            (
                act.name,
                act.version,
                str(len(result)),
                _seconds(float(np.median(result.ttft_s[result.ok])) if result.ok.any() else math.nan),
                _seconds(p99_ttft_s(result)),
                f"{100 * result.slo_met.mean():.1f} %",
                f"{int((~result.ok).sum())}",
            )
        )
    header = ("act", "bundle", "requests", "TTFT p50", "TTFT p99", "within objectives", "not answered")
    return Section("Acts", tables=[Table(header, table)])


def _changed(story: Story) -> Section:
    """The same requests under both models."""
    both = {
        f"{act.name} ({act.version})": act.result.ttft_s[act.result.ok]
        for act in story.acts
        if act.name in {CHANGED, RENEWED}
    }
    return Section(
        "The same requests, before and after the promotion",
        figures=[
            Figure(
                figures.distribution(both, label="time to first token (s)"),
                "TTFT after the change of hardware; further left is better.",
            )
        ],
    )


def _evidence(story: Story) -> Section:
    found: list[tuple[str, Evidence]] = [
        *([("retrained: held-out log", story.made.evidence)] if story.made is not None else []),
        *((f"{name}: shadow", evidence) for name, evidence in story.shadows.items()),
    ]
    told = [
        f"{who}: {evidence.verdict.replace('_', ' ')}. {'; '.join(evidence.reasons)}."
        for who, evidence in found
    ]
    ratios = [
        (who, evidence.figures[value], evidence.figures[lo], evidence.figures[hi])
        for who, evidence in found
        for value, lo, hi in _RATIOS
        if {value, lo, hi} <= evidence.figures.keys() and evidence.figures[hi] < MOST_DRAWN
    ]
    drawn = []
    if ratios:
        drawn.append(
            Figure(
                figures.intervals(ratios, label="J ratio (95 % interval)", reference=1.0),
                "Challenger over champion, replayed in the log's cluster; below 1 is better.",
            )
        )
    return Section("Evidence", paragraphs=told, figures=drawn)


_RATIOS = (
    ("j_ratio.log", "j_ratio.log.lo", "j_ratio.log.hi"),
    ("replay.j_ratio", "replay.j_ratio.lo", "replay.j_ratio.hi"),
)
"""Names of a ratio and its interval in the figures of retraining and of shadow."""


def _canary(story: Story) -> Section:
    table = [
        (
            datetime.fromtimestamp(one.at_unix_s, UTC).strftime("%H:%M:%S"),
            one.challenger,
            one.what.replace("_", " "),
            f"{one.share:.0%}",
            *(_ratio(one.figures.get(key)) for key in ("p99_ttft_ratio", "p99_e2e_ratio")),
        )
        for one in story.transitions
    ]
    header = ("UTC", "challenger", "what", "share from then on", "p99 TTFT ratio", "p99 E2E ratio")
    return Section("Canary", tables=[Table(header, table)])


def _ratio(value: float | None) -> str:
    return "–" if value is None or not math.isfinite(value) else f"{value:.2f}"


def _whole(acts: Sequence[Act]) -> list[Act]:
    """Acts; those of a canary, which come in pieces, by their first and last alone."""
    shown: list[Act] = []
    for i, act in enumerate(acts):
        inner = 0 < i < len(acts) - 1 and acts[i - 1].name == act.name == acts[i + 1].name
        if not inner:
            shown.append(act)
    return shown


def _over_time(acts: Sequence[Act]) -> Mapping[str, tuple[Values, Values]]:
    """A line for each act by name; pieces of one act are joined."""
    start_s = acts[0].began_unix_s if acts else 0.0
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for act in acts:
        result = act.result
        known = result.ok & np.isfinite(result.ttft_s)
        if not known.any():
            continue
        sent_s, ttft_s = result.scheduled_s[known], result.ttft_s[known]
        at, p90 = lines.setdefault(act.name, ([], []))
        for t in np.arange(0.0, sent_s.max() + STEP_S, STEP_S):
            near = np.abs(sent_s - t) <= WINDOW_S / 2
            if near.sum() >= 5:
                at.append((act.began_unix_s - start_s + float(t)) / 60.0)
                p90.append(float(np.quantile(ttft_s[near], 0.9)))
    return {name: (np.array(at), np.array(p90)) for name, (at, p90) in lines.items() if at}


def _text(one: Row) -> str:
    value, unit = one["value"], one["unit"]
    if not isinstance(value, float):
        return "–"
    if unit == "share":
        return f"{100 * value:.2f} %"
    if unit == "s":
        return _seconds(value)
    return f"{value:.0f}" if unit == "requests" else f"{value:.2f}"


def _seconds(value: float) -> str:
    return f"{value:.2f} s" if math.isfinite(value) else "–"
