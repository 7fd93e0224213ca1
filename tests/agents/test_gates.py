from __future__ import annotations

import pytest

from steersman.agents.evidence import Evidence, Verdict
from steersman.agents.gates import DAY_S, GateSettings, Live, judge

NOW_S = 2e9


def found(kind: str, verdict: Verdict, *, champion: str = "b1", age_s: float = 60.0) -> Evidence:
    return Evidence(kind, "b2", champion, verdict, ("as measured",), {}, NOW_S - age_s)  # type: ignore[arg-type]


def passed(*evidence: Evidence, champions: tuple[str, ...] = ("b1",), **settings: object) -> bool:
    gates = judge(evidence, GateSettings(**settings), champions=champions, now_unix_s=NOW_S)
    return all(gate.passed for gate in gates)


EVALUATED = found("evaluation", "no_worse")


@pytest.mark.parametrize("kind", ["shadow", "canary"])
def test_an_evaluation_and_one_look_at_live_traffic_are_enough(kind: str) -> None:
    assert passed(EVALUATED, found(kind, "better"))
    assert passed(EVALUATED, found(kind, "no_worse"))
    assert not passed(EVALUATED, found(kind, "insufficient"))
    assert not passed(EVALUATED, found(kind, "worse"))
    assert not passed(found(kind, "better"))
    assert not passed(EVALUATED)


def test_what_one_found_worse_the_other_does_not_make_good() -> None:
    assert not passed(EVALUATED, found("shadow", "better"), found("canary", "worse"))
    assert not passed(EVALUATED, found("shadow", "worse"), found("canary", "no_worse"))
    assert passed(EVALUATED, found("shadow", "insufficient"), found("canary", "no_worse"))


def test_the_newest_of_a_kind_counts() -> None:
    old, new = found("canary", "better", age_s=100.0), found("canary", "worse", age_s=10.0)
    assert not passed(EVALUATED, new, old)
    old, new = found("canary", "worse", age_s=100.0), found("canary", "better", age_s=10.0)
    assert passed(EVALUATED, new, old)


def test_evidence_against_another_champion_or_from_long_ago_counts_for_nothing() -> None:
    assert not passed(EVALUATED, found("canary", "better", champion="b0"))
    assert not passed(EVALUATED, found("canary", "better", champion=""))
    assert not passed(EVALUATED, found("canary", "better", age_s=31 * DAY_S))
    assert passed(EVALUATED, found("canary", "better", age_s=31 * DAY_S), max_age_days=40)
    refitted = found("canary", "better", champion="b1-refit")
    assert passed(EVALUATED, refitted, champions=("b1", "b1-refit"))


def test_without_a_champion_the_evaluation_is_enough() -> None:
    against_baselines = found("evaluation", "better", champion="")
    assert passed(against_baselines, champions=())
    assert not passed(champions=())


def test_gates_are_chosen() -> None:
    shadow, canary = found("shadow", "better"), found("canary", "better")
    assert passed(EVALUATED, live=Live.NONE)
    assert passed(shadow, evaluation=False)
    assert not passed(EVALUATED, shadow, live=Live.CANARY)
    assert passed(EVALUATED, canary, live=Live.CANARY)
    assert not passed(EVALUATED, shadow, live=Live.BOTH)
    assert passed(EVALUATED, shadow, canary, live=Live.BOTH)


def test_an_override_is_no_evidence() -> None:
    assert not passed(found("override", "no_worse"))
