"""The report of an evaluation of routing: where the judged policy wins, and where it loses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from steersman.agents.evaluate.aims import AIMS, Verdict
from steersman.agents.evaluate.comparisons import P99, Row, over_best
from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import Cell, EvaluationTable
from steersman.agents.report.knee import knee_figures
from steersman.agents.report.page import Page, Section, Table

SIGNS = {"win": "✓", "lose": "✗", "even": "≈", "": ""}
"""What a coloured cell says without its colour."""
P99_LIMIT = 1.1
"""A p99 TTFT up to so many times that of the baseline with the least J is not a loss."""
_VERDICTS = {
    Verdict.REACHED: "win",
    Verdict.MISSED: "lose",
    Verdict.UNSURE: "even",
    Verdict.NOT_RUN: "",
}


@dataclass(frozen=True)
class RoutingReport:
    """What the page is made of."""

    judged: str
    rivals: Sequence[str]
    table: EvaluationTable
    rows: Sequence[Row]
    """The watched figures (`comparisons.py`)."""
    aims: bool = True
    """Whether to show the aims: they are about the standard cells."""
    commands: Sequence[str] = ()
    """What makes this report again."""

    def page(self) -> Page:
        """The page."""
        sections = [_aims(self.rows)] if self.aims else []
        cells = self.table.cells
        if self.rivals:
            sections += [self._cell_by_cell(), self._every_baseline()]
        sections += [self._scenario(name) for name in dict.fromkeys(cell.scenario for cell in cells)]
        if self.commands:
            sections.append(Section("Made with", commands=self.commands))
        return Page(
            title=f"{self.judged} on {_counted(len(cells), 'cell')}",
            subtitle="All policies met the same arrivals on simulated clusters with the same seeds. "
            f"Ratios under 1: {self.judged} is better. Intervals: 95 %, paired bootstrap over seeds.",
            sections=sections,
            highlights=self._highlights(),
        )

    def _highlights(self) -> list[tuple[str, str]]:
        if not self.rivals:
            return []
        usual = self.table.usual()
        rival = usual.ranked(self.rivals)[0]
        ratio = usual.ratio(self.judged, rival)
        shown = [(f"{ratio.value:.3f}", f"J over {rival}, the best baseline over all usual loads")]
        if self.aims:
            verdicts = [aim.judge(self.rows)[0] for aim in AIMS]
            reached = verdicts.count(Verdict.REACHED)
            shown.append((f"{reached} of {len(AIMS)}", "aims reached"))
        return shown

    def _cell_by_cell(self) -> Section:
        table = self.table
        rows, marks = [], []
        for cell in _ordered(table):
            best, j = over_best(table, self.judged, self.rivals, cell)
            j1 = table.ratio(self.judged, best, figure="j1", cells=[cell])
            p99 = table.ratio(self.judged, best, figure=P99, cells=[cell])
            verdicts = [verdict(j), verdict(j1), verdict(p99, P99_LIMIT)]
            ratios = [f"{SIGNS[v]} {r}" for v, r in zip(verdicts, (j, j1, p99), strict=True)]
            trips = sum(table.fallbacks(self.judged, cell).values())
            pairs = [
                f"{table.mean(self.judged, cell, name):{form}} / {table.mean(best, cell, name):{form}}"
                for name, form in _SIDE_BY_SIDE
            ]
            rows.append([str(cell), best, *ratios, *pairs, str(trips)])
            marks.append(["", "", *verdicts, *[""] * len(pairs), "lose" if trips else ""])
        return Section(
            "Cell by cell, against the baseline with the least J there",
            paragraphs=[
                "✓ surely better, ✗ surely worse, ≈ neither; a p99 TTFT up to 1.1 times is not worse. "
                f"Pairs are {self.judged} / baseline."
            ],
            tables=[
                Table(
                    _CELL_HEADS,
                    rows,
                    marks=marks,
                )
            ],
        )

    def _every_baseline(self) -> Section:
        groups = self.table.groups()
        cells = _ordered(self.table)
        columns = [*groups.values(), *([cell] for cell in cells)]
        usual = self.table.usual()
        rows, marks = [], []
        for rival in sorted(self.rivals, key=lambda name: usual.ratio(self.judged, name).value):
            found = [self.table.ratio(self.judged, rival, cells=column) for column in columns]
            verdicts = [verdict(ratio) for ratio in found]
            rows.append(
                [
                    rival,
                    *(
                        f"{SIGNS[v]} {ratio if i < len(groups) else f'{ratio.value:.3f}'}"
                        for i, (v, ratio) in enumerate(zip(verdicts, found, strict=True))
                    ),
                ]
            )
            marks.append(["", *verdicts])
        header = ["baseline", *groups, *map(str, cells)]
        return Section("J over every baseline", tables=[Table(header, rows, marks=marks)])

    def _scenario(self, scenario: str) -> Section:
        own = self.table.only([cell for cell in self.table.cells if cell.scenario == scenario])
        cell = max(own.usual().cells, key=lambda cell: cell.load)
        return Section(
            scenario,
            tables=[_latencies(own, cell, (self.judged, *self.rivals))],
            figures=knee_figures(own, self.judged, self.rivals),
        )


_CELL_HEADS = (
    *("cell", "baseline", "J ratio", "J1 ratio", "p99 TTFT ratio"),
    *("J", "SLO met", "Jain", "max/mean", "prefix hits", "guard trips"),
)
_SIDE_BY_SIDE = (
    ("j", ".3f"),
    ("slo_attainment", ".1%"),
    ("jain", ".3f"),
    ("max_over_mean", ".2f"),
    ("prefix_hit_rate", ".0%"),
)


def verdict(ratio: Ratio, limit: float = 1.0) -> str:
    """`win`: surely under 1; `lose`: surely over the limit; else `even`."""
    return "win" if ratio.hi < 1.0 else "lose" if ratio.lo > limit else "even"


def _aims(rows: Sequence[Row]) -> Section:
    shown, marks = [], []
    for aim in AIMS:
        kind, row = aim.judge(rows)
        reached = "" if row is None else f"{row['value']:.3f}"
        if row is not None and row["lo"] is not None:
            reached = str(Ratio(row["value"], row["lo"], row["hi"]))
        mark = _VERDICTS[kind]
        note = "" if row is None else str(row["note"])
        shown.append([aim.words, f"{aim.limit:g}", reached, f"{SIGNS[mark]} {kind.value}".strip(), note])
        marks.append(["", "", "", mark, ""])
    return Section(
        "Aims",
        paragraphs=["An aim is reached when the worse end of the interval is within it."],
        tables=[Table(("aim", "at most", "measured", "verdict", "about"), shown, marks=marks)],
    )


def _latencies(table: EvaluationTable, cell: Cell, policies: Sequence[str]) -> Table:
    rows = []
    for policy in sorted(policies, key=lambda name: table.mean(name, cell)):
        means = {name: table.mean(policy, cell, name) for name in _TIMES}
        rows.append(
            [
                policy,
                f"{table.mean(policy, cell):.3f}",
                f"{table.mean(policy, cell, 'j1'):.3f}",
                f"{table.mean(policy, cell, 'slo_attainment'):.1%}",
                f"{table.mean(policy, cell, 'goodput_rps'):.2f}",
                *(f"{means[name] * scale:.{digits}f}" for name, (scale, digits) in _TIMES.items()),
                f"{table.mean(policy, cell, 'failed'):.0f}",
            ]
        )
    return Table(
        ("policy", "J", "J1", "SLO met", "goodput/s", *_TIME_HEADS, "failed"),
        rows,
        caption=f"All policies at {cell.load:.0%}, unweighted; TTFT and TPOT in ms, E2E in s",
    )


_TIMES: Mapping[str, tuple[float, int]] = {
    **{f"ttft_{key}_s": (1e3, 0) for key in ("mean", "p50", "p90", "p99")},
    **{f"tpot_{key}_s": (1e3, 1) for key in ("mean", "p50", "p90", "p99")},
    **{f"e2e_{key}_s": (1.0, 1) for key in ("mean", "p50", "p90", "p99")},
}
_TIME_HEADS = [
    f"{kind} {key}" for kind in ("TTFT", "TPOT", "E2E") for key in ("mean", "p50", "p90", "p99")
]


def _ordered(table: EvaluationTable) -> list[Cell]:
    """The cells of each scenario by load."""
    scenarios = list(dict.fromkeys(cell.scenario for cell in table.cells))
    return sorted(table.cells, key=lambda cell: (scenarios.index(cell.scenario), cell.load))


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
