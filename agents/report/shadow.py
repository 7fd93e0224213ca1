"""The page of a shadow study: the verdict first, then everything it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import numpy as np

from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.offpolicy.accuracy import Accuracy
from steersman.agents.offpolicy.agreement import Agreement, Share
from steersman.agents.offpolicy.replay import CHALLENGER, CHAMPION
from steersman.agents.offpolicy.study import Study
from steersman.agents.report.figures import (
    coverage_bars,
    grouped_bars,
    intervals,
    predicted_against_actual,
)
from steersman.agents.report.page import Figure, Page, Section, Table
from steersman.agents.report.routing import SIGNS, verdict

WORDS = {
    "better": "better",
    "no_worse": "no worse",
    "worse": "worse",
    "insufficient": "not enough to tell",
}
UNITS = {"ttft": "s", "tpot": "s", "output": "tokens"}
NAMES = {"ttft": "TTFT", "tpot": "TPOT", "output": "output tokens"}
_REPLAYED = {
    "j": "J",
    "j1": "J, all classes alike",
    "ttft_p50_s": "TTFT p50",
    "ttft_p99_s": "TTFT p99",
    "tpot_p50_s": "TPOT p50",
    "e2e_p50_s": "E2E p50",
    "e2e_p99_s": "E2E p99",
}
GROUPS = 10
LEAST_DRAWN = 100
"""Outcomes from which on a drawing by groups says something."""


def shadow_page(study: Study, *, commands: Sequence[str] = ()) -> Page:
    """The page."""
    sections = [_verdict(study)]
    if study.table is not None:
        sections.append(_replay(study.table))
    if study.agreement is not None:
        sections.append(_agreement(study, study.agreement))
    sections.append(_predictions(study))
    sections.append(_estimates(study))
    if study.world is not None:
        sections.append(_world(study))
    sections.append(_learning(study))
    if commands:
        sections.append(Section("Made with", commands=commands))
    matched = study.matched
    return Page(
        title=f"Shadow: {study.challenger} against {study.champion}",
        subtitle=f"Model {study.model or '(unnamed)'}: {study.records} logged requests over "
        f"{study.span_s / 60.0:.1f} minutes; {len(matched)} decisions scored, {matched.live} of them "
        "while they were served. Ratios are challenger over champion: under 1 the challenger is better. "
        "Intervals: 95 %.",
        sections=sections,
        highlights=_highlights(study),
    )


def _highlights(study: Study) -> list[tuple[str, str]]:
    shown = [(WORDS[study.evidence.verdict], "verdict")]
    ratio = study.ratio()
    if ratio is not None:
        shown.append((f"{ratio.value:.3f}", f"J in the replay [{ratio.lo:.3f}, {ratio.hi:.3f}]"))
        p99 = study.ratio("ttft_p99_s")
        assert p99 is not None
        shown.append((f"{p99.value:.3f}", f"p99 TTFT there [{p99.lo:.3f}, {p99.hi:.3f}]"))
    if study.agreement is not None:
        shown.append((f"{study.agreement.overall.agree:.1%}", "of choices are the same"))
    return shown


def _verdict(study: Study) -> Section:
    return Section(
        f"Verdict: {WORDS[study.evidence.verdict]}",
        paragraphs=[
            *(f"• {reason[0].upper()}{reason[1:]}." for reason in study.evidence.reasons),
            *(f"• {note[0].upper()}{note[1:]}." for note in study.notes),
            "The paired replay and the predictions carry the verdict. Off-policy estimates may object, "
            "but never promote: each looks at one request, and a choice changes what later ones meet.",
        ],
    )


def _replay(table: EvaluationTable) -> Section:
    ratios = {name: table.ratio(CHALLENGER, CHAMPION, figure=name) for name in _REPLAYED}
    rows, marks = [], []
    cell = table.cells[0]
    for name, words in _REPLAYED.items():
        kind = verdict(ratios[name])
        means = [f"{table.mean(policy, cell, name):.4g}" for policy in (CHAMPION, CHALLENGER)]
        rows.append([words, *means, f"{SIGNS[kind]} {ratios[name]}"])
        marks.append(["", "", "", kind])
    streams = len(table.by_seed(CHAMPION, cell))
    trips = [sum(table.fallbacks(policy, cell).values()) for policy in (CHAMPION, CHALLENGER)]
    return Section(
        "Counterfactual replay",
        paragraphs=[
            f"Both play the same {streams} streams, drawn in blocks from the log's own traffic at its "
            "own rate, in the cluster below. ✓ surely better, ✗ surely worse, ≈ neither. The guard "
            f"overruled the champion {trips[0]} times and the challenger {trips[1]} times.",
        ],
        tables=[Table(("seconds, or cost", "champion", "challenger", "ratio"), rows, marks=marks)],
        figures=[
            Figure(
                intervals(
                    [(words, *_ends(ratios[name])) for name, words in _REPLAYED.items()],
                    label="challenger over champion",
                    reference=1.0,
                ),
                "Paired ratios with their 95 % intervals; left of the line the challenger is better.",
            )
        ],
    )


def _ends(ratio: Ratio) -> tuple[float, float, float]:
    return ratio.value, ratio.lo, ratio.hi


def _agreement(study: Study, found: Agreement) -> Section:
    def table(caption: str, shares: Sequence[Share]) -> Table:
        rows = [[share.name, str(share.decisions), f"{share.agree:.1%}"] for share in shares]
        return Table((caption, "decisions", "the same"), rows)

    fallbacks = ", ".join(f"{reason} {share:.1%}" for reason, share in found.fallbacks.items())
    matched = study.matched
    paragraphs = [
        f"The challenger's guard would have overruled it on {fallbacks} of decisions."
        if fallbacks
        else "The challenger's guard would not have overruled it once.",
        f"{matched.failed} decisions it could not score; {matched.passed_over} records are no decision "
        f"of the champion's. Of {matched.checked} live opinions asked for again, {matched.differing} "
        "differ.",
    ]
    return Section(
        "Agreement",
        paragraphs=paragraphs,
        tables=[
            table("mean batch use", [*found.by_load, found.overall]),
            table("tenant", found.by_tenant),
        ],
        figures=[
            Figure(
                grouped_bars(
                    [share.name for share in found.by_load],
                    {"the same choice": [100.0 * share.agree for share in found.by_load]},
                    label="% of decisions",
                ),
                "How often both choose the same, by how full the candidates' batches are.",
            )
        ],
    )


def _predictions(study: Study) -> Section:
    tables = [
        _accuracy_table("on every request, where it was served", study.accuracies),
        _accuracy_table("only where both choose the same", study.agreed),
    ]
    figures = []
    for each in study.accuracies:
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


def _accuracy_table(caption: str, accuracies: Sequence[Accuracy]) -> Table:
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


def _estimates(study: Study) -> Section:
    ope = study.ope
    if not ope.estimates:
        return Section("Off-policy estimates", paragraphs=[f"None: {ope.note}."])
    words = {"ips": "IPS", "snips": "SNIPS", "dr": "doubly robust"}
    rows = []
    for name, one in ope.estimates.items():
        rows.append(
            [
                words[name],
                str(one.ratio),
                f"{one.effective:.0f} of {ope.decisions}",
                f"{one.clipped:.1%}",
                f"{one.mean_weight:.2f}",
            ]
        )
    drawn = [(words[name], *_ends(one.ratio)) for name, one in ope.estimates.items()]
    ratio = study.ratio()
    if ratio is not None:
        drawn.append(("replay", *_ends(ratio)))
    shown = [row for row in drawn if np.isfinite(row[1:]).all()]
    return Section(
        "Off-policy estimates",
        paragraphs=[
            f"Cost of a decision over the champion's, from {ope.decisions} decisions whose cost and "
            f"propensity are known; {ope.explored:.1%} of them were improbable. They are biased here, "
            "since a choice changes what later requests meet, and rest on the effective decisions only. "
            "A mean weight far from 1 says that the log hardly covers what the challenger does."
        ],
        tables=[Table(("estimate", "ratio", "effective decisions", "weights cut", "mean weight"), rows)],
        figures=[
            Figure(
                intervals(shown, label="challenger over champion", reference=1.0),
                "The estimates beside the replay.",
            )
        ]
        if shown
        else [],
    )


def _world(study: Study) -> Section:
    world = study.world
    assert world is not None
    kinds = [
        [
            kind.profile.name,
            ", ".join(kind.replicas),
            "as configured" if kind.fit is None else f"fitted on {kind.fit.fitted_requests} requests",
        ]
        for kind in world.kinds
    ]
    kept = [f"{', '.join(kind.replicas)}: {kind.note}." for kind in world.kinds if kind.note]
    lines = [
        [line.figure.replace("_", " "), f"{line.measured_s:.4g}", f"{line.after:+.1%}"]
        for line in study.fidelity
    ]
    return Section(
        "The cluster behind the replay",
        paragraphs=[
            f"{len(world.trace)} requests that ended well on these replicas ({world.left_out} records "
            "are left out). Replicas of one profile whose speeds differ are kinds of their own. What "
            "was logged, played again with every request where it was served, says how true it is. "
            "Differences under 20 ms, of TPOT under 2 ms, count as none.",
            *kept,
        ],
        tables=[
            Table(("hardware profile", "replicas", "calibration"), kinds),
            Table(("quantile", "logged, s", "model"), lines, caption="Error of the model"),
        ],
    )


def _learning(study: Study) -> Section:
    found = study.learning
    alarms = [
        [
            alarm.target,
            alarm.replica or alarm.hardware,
            str(alarm.outcomes),
            _time(alarm.at_unix_s),
        ]
        for alarm in found.alarms
    ]
    corrections = [
        [
            each.replica,
            f"{each.ttft_first:.2f} → {each.ttft_last:.2f}",
            f"{each.tpot_first:.2f} → {each.tpot_last:.2f}",
        ]
        for each in found.corrections
    ]
    versions = [[each.version, _time(each.since_unix_s), str(each.decisions)] for each in found.versions]
    highest = max(found.statistics.values(), default=0.0)
    said = f"Drift alarms: {len(alarms)}" if alarms else "No prediction drifted"
    tables = [
        Table(("version that served", "since", "decisions"), versions),
        Table(("replica", "TTFT", "TPOT"), corrections, caption="Actual over estimated, first → last"),
    ]
    if alarms:
        tables.insert(0, Table(("drifted", "where", "after outcomes", "at"), alarms))
    return Section(
        "Learning while serving",
        paragraphs=[
            f"{said}; the highest drift statistic at the end is {highest:.2f}, above 1 is drift. A "
            "refit shows as another version."
        ],
        tables=[table for table in tables if table.rows],
    )


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
