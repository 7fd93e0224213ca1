from __future__ import annotations

import numpy as np
import pytest

from steersman.agents.evaluate.aims import AIMS, Aim, Verdict
from steersman.agents.evaluate.comparisons import (
    Row,
    distance,
    each_rival,
    over_best,
    replica_rows,
    watched,
)
from steersman.agents.evaluate.references import Reference
from steersman.agents.evaluate.replicas import Needed
from steersman.agents.evaluate.table import Cell
from tests.agents.evaluate.tables import table_of

A, B, OVER = Cell("a", 0.8), Cell("b", 0.95), Cell("b", 1.2)
COSTS = {
    "mine": {A: [1.0, 1.1], B: [3.0, 3.3], OVER: [8.0, 8.0]},
    "p2c": {A: [2.0, 2.2], B: [2.0, 2.2], OVER: [10.0, 10.0]},
    "llm-d-default": {A: [4.0, 4.4], B: [6.0, 6.6], OVER: [16.0, 16.0]},
}
RIVALS = ["p2c", "llm-d-default"]
TABLE = table_of(COSTS, mine={"ttft_p99_s": 3.0}, p2c={"ttft_p99_s": 2.0})


def by_name(rows: list[Row]) -> dict[str, Row]:
    return {row["name"]: row for row in rows}


def test_the_watched_figures() -> None:
    rows = by_name(watched(TABLE, "mine", RIVALS))
    assert rows["J_ratio.vs_p2c_score"]["value"] == pytest.approx((0.5 * 1.5) ** 0.5)
    assert rows["J1_ratio.vs_llmd_published"]["value"] == pytest.approx((0.25 * 0.5) ** 0.5)
    assert "J_ratio.vs_marginal_tuned" not in rows
    assert rows["cells_worse.vs_p2c_score"]["value"] == 1.0
    assert rows["cells_worse.vs_llmd_published"]["value"] == 0.0
    worst = rows["worst_cell.vs_best_baseline"]
    assert worst["value"] == pytest.approx(1.5)
    assert worst["note"].startswith("b 95%, against p2c")
    # Against the baseline with the least J, whatever its own p99.
    assert rows["worst_cell.p99_ttft_vs_best_baseline"]["value"] == pytest.approx(1.5)


def test_every_rival_cell_by_cell() -> None:
    rows = each_rival(TABLE, "mine", RIVALS)
    assert len(rows) == 2 * (1 + 2 + 3 + 1)
    assert by_name(rows)["J of mine over p2c, b 95%"]["value"] == pytest.approx(1.5)


def test_one_seed_gives_no_verdict_on_being_worse() -> None:
    alone = table_of({name: {A: cells[A][:1]} for name, cells in COSTS.items()})
    names = by_name(watched(alone, "mine", RIVALS) + each_rival(alone, "mine", RIVALS))
    assert not [name for name in names if "worse" in name]


def test_the_best_baseline_of_a_cell_and_of_all() -> None:
    best, ratio = over_best(TABLE, "mine", RIVALS, A)
    assert best == "p2c"
    assert ratio.value == pytest.approx(0.5)
    assert TABLE.ranked(["llm-d-default", "mine", "p2c"]) == ["mine", "p2c", "llm-d-default"]


@pytest.mark.parametrize("best", [Reference.HINDSIGHT, Reference.LENGTHS])
def test_the_distance_to_the_clairvoyant_is_that_to_the_best_of_them(best: Reference) -> None:
    other = {A: [2.0, 2.2], B: [3.0, 3.3]}
    costs = {"mine": other, **{reference.value: other for reference in Reference}}
    costs[best.value] = {A: [1.0, 1.1], B: [1.5, 1.65]}
    rows = by_name(distance(table_of(costs), "mine"))
    assert rows["clairvoyant.cells_lowest"]["value"] == 2.0
    assert rows["J_ratio.vs_clairvoyant"]["value"] == pytest.approx(2.0)
    assert best.value in rows["J_ratio.vs_clairvoyant"]["note"]
    assert rows["J_ratio.vs_lookahead"]["value"] == pytest.approx(1.0)
    costs[best.value] = {A: [1.0, 1.1], B: [3.5, 3.6]}
    rows = by_name(distance(table_of(costs), "mine"))
    assert rows["clairvoyant.cells_lowest"]["value"] == 1.0
    assert any(name.startswith(f"J of mine over {Reference.HINDSIGHT.value}") for name in rows)


def test_overload_stands_apart() -> None:
    rows = by_name(watched(TABLE, "mine", RIVALS))
    assert rows["overload.vs_best_baseline"]["value"] == pytest.approx(0.8)
    usual = TABLE.usual()
    assert usual.cells == (A, B)
    assert "overload.vs_best_baseline" not in by_name(watched(usual, "mine", RIVALS))
    only_over = TABLE.only([OVER])
    assert only_over.usual() == only_over


def test_replicas_of_round_robin_have_a_name_of_their_own() -> None:
    needed = {
        "mine": Needed("mine", np.array([8.0, 8.0])),
        "round-robin": Needed("round-robin", np.array([16.0, 32.0]), beyond=1),
        "p2c": Needed("p2c", np.array([10.0, 10.0])),
    }
    rows = by_name(replica_rows("mixed", needed, "mine"))
    assert rows["replicas_ratio.mixed"]["value"] == pytest.approx(8 / (16 * 32) ** 0.5)
    assert "32 do not suffice for round-robin in 1 of 2 runs" in rows["replicas_ratio.mixed"]["note"]
    assert rows["replicas_ratio.mixed over p2c"]["hi"] == pytest.approx(0.8)


@pytest.mark.parametrize(
    ("value", "hi", "verdict"),
    [(0.7, 0.74, Verdict.REACHED), (0.7, 0.76, Verdict.UNSURE), (0.8, 0.9, Verdict.MISSED)],
)
def test_an_aim_holds_when_the_worse_end_does(value: float, hi: float, verdict: Verdict) -> None:
    rows: list[Row] = [{"name": "it", "value": value, "lo": 0.6, "hi": hi}]
    assert Aim("it", 0.75, "words").judge(rows) == (verdict, rows[0])
    assert Aim("other", 0.75, "words").judge(rows) == (Verdict.NOT_RUN, None)


def test_aims_are_about_figures_that_are_printed() -> None:
    printed = {"J_ratio.vs_clairvoyant"}
    printed |= {"replicas_ratio.homogeneous", "replicas_ratio.mixed"}
    names = {"mine", "p2c", "llm-d-default", "llm-d-default:tuned", "dynamo-kv", "marginal-cost:tuned"}
    everybody = table_of({name: {A: [1.0, 1.2], OVER: [2.0, 3.0]} for name in names})
    printed |= set(by_name(watched(everybody, "mine", sorted(names - {"mine"}))))
    assert {aim.figure for aim in AIMS} <= printed
