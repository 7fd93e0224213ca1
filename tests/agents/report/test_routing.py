from __future__ import annotations

from pathlib import Path

from steersman.agents.evaluate.comparisons import watched
from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import Cell, EvaluationTable, Run
from steersman.agents.report.page import render, write
from steersman.agents.report.routing import RoutingReport, verdict
from tests.agents.evaluate.tables import figures, table_of
from tests.agents.report.test_page import Balance

A, B, OVER = Cell("a", 0.8), Cell("a", 0.95), Cell("a", 1.2)
COSTS = {
    "mine": {A: [1.0, 1.1], B: [3.0, 3.3]},
    "p2c": {A: [2.0, 2.2], B: [2.0, 2.2]},
    "llm-d-default": {A: [4.0, 4.4], B: [6.0, 6.6]},
}
RIVALS = ["p2c", "llm-d-default"]


def report() -> RoutingReport:
    usual = table_of(COSTS)
    over = tuple(Run(name, OVER, 0, figures(j=9.0, j1=9.0), {"range": 3}) for name in COSTS)
    table = EvaluationTable((*usual.runs, *over))
    return RoutingReport("mine", RIVALS, table, watched(table, "mine", RIVALS))


def test_wins_and_losses_can_be_read_without_colours() -> None:
    html = render(report().page())
    balance = Balance()
    balance.feed(html)
    assert balance.open == []
    assert '<td class="win">✓ 0.500 [0.500, 0.500]</td>' in html  # a 80%, over p2c
    assert '<td class="lose">✗ 1.500 [1.500, 1.500]</td>' in html  # a 95%
    assert '<td class="even">≈ 1.000 [1.000, 1.000]</td>' in html  # a 120%
    assert '<td class="lose">3</td>' in html  # trips of the guard


def test_aims_stand_beside_what_is_reached() -> None:
    html = render(report().page())
    assert "J 25 % below llm-d&#39;s with published weights" in html
    assert '<td class="win">✓ reached</td>' in html
    assert '<td class="lose">✗ missed</td>' in html
    assert "<td>not run</td>" in html


def test_curves_need_two_loads() -> None:
    html = render(report().page())
    assert html.count("<svg") == 5
    assert ">mine</text>" in html
    one = table_of({name: {A: cells[A]} for name, cells in COSTS.items()})
    assert "<svg" not in render(RoutingReport("mine", RIVALS, one, []).page())


def test_a_policy_alone_has_nothing_to_be_compared_with() -> None:
    alone = RoutingReport("mine", [], table_of({"mine": COSTS["mine"]}), [], aims=False)
    html = render(alone.page())
    assert "Cell by cell" not in html
    assert html.count("<svg") == 5


def test_verdicts() -> None:
    assert verdict(Ratio(0.9, 0.8, 0.99)) == "win"
    assert verdict(Ratio(0.9, 0.8, 1.01)) == "even"
    assert verdict(Ratio(1.1, 1.05, 1.2)) == "lose"
    assert verdict(Ratio(1.1, 1.05, 1.2), limit=1.1) == "even"


def test_chromium_shows_it_without_sideways_scrolling(tmp_path: Path, chromium: str) -> None:
    from tests.support.browser import measure

    path = tmp_path / "report.html"
    write(report().page(), path)
    seen = measure(chromium, path, 1280)
    assert seen["figures"] == 5
    assert seen["scroll_width"] <= seen["client_width"]
