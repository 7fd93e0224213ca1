"""The page of a shadow study: the verdict first, then everything it rests on."""

from __future__ import annotations

from collections.abc import Sequence

from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.offpolicy.agreement import Agreement, Share
from steersman.agents.offpolicy.replay import CHALLENGER, CHAMPION
from steersman.agents.offpolicy.study import Study
from steersman.agents.report.accuracy import accuracy_section
from steersman.agents.report.estimates import estimates_section
from steersman.agents.report.figures import ends, grouped_bars, intervals
from steersman.agents.report.learning import learning_section
from steersman.agents.report.page import Figure, Page, Section, Table
from steersman.agents.report.routing import SIGNS, verdict
from steersman.agents.report.world import world_section

WORDS = {
    "better": "better",
    "no_worse": "no worse",
    "worse": "worse",
    "insufficient": "not enough to tell",
}
_REPLAYED = {
    "j": "J",
    "j1": "J, all classes alike",
    "ttft_p50_s": "TTFT p50",
    "ttft_p99_s": "TTFT p99",
    "tpot_p50_s": "TPOT p50",
    "e2e_p50_s": "E2E p50",
    "e2e_p99_s": "E2E p99",
}


def shadow_page(study: Study, *, commands: Sequence[str] = ()) -> Page:
    """The page."""
    sections = [_verdict(study)]
    if study.table is not None:
        sections.append(_replay(study.table))
    if study.agreement is not None:
        sections.append(_agreement(study, study.agreement))
    sections.append(accuracy_section(study.accuracies, study.agreed))
    sections.append(estimates_section(study.ope, study.ratio()))
    if study.world is not None:
        sections.append(world_section(study.world, study.fidelity))
    sections.append(learning_section(study.learning))
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
                    [(words, *ends(ratios[name])) for name, words in _REPLAYED.items()],
                    label="challenger over champion",
                    reference=1.0,
                ),
                "Paired ratios with their 95 % intervals; left of the line the challenger is better.",
            )
        ],
    )


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
