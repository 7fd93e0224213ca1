"""Decisions meet opinions; what cannot be judged is left out, and counted."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.learned.shipped import load_shipped
from steersman.agents.offpolicy.accuracy import accuracy
from steersman.agents.offpolicy.agreement import agreement
from steersman.agents.offpolicy.matched import Matched, match
from steersman.agents.offpolicy.ope import off_policy
from steersman.agents.shadow.challenger import Case, Challenger
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Priority, Status
from steersman.traces.shadow_record import ShadowRecord


def test_live_opinions_are_taken_and_checked(records: list[OutcomeRecord]) -> None:
    challenger = Challenger(load_shipped())
    some = records[:50]
    given = {}
    for record in some[:30]:
        case = Case.of(record)
        assert case is not None
        said = challenger.opinion(case)
        given[said.key] = said
    wrong = some[0]
    key = (wrong.request_id, wrong.decided_at_s)
    given[key] = replace(given[key], choice=(given[key].choice + 1) % 4)
    broken = some[1]
    given[(broken.request_id, broken.decided_at_s)] = ShadowRecord(
        broken.request_id, broken.decided_at_s, "v", error="ValueError: no"
    )
    refused = replace(some[2], choice=-1)
    own = replace(some[3], arm="challenger")
    found = match([*some[:2], refused, own, *some[4:]], given, challenger)
    assert (found.failed, found.passed_over) == (1, 2)
    assert len(found) == 47
    assert found.live == 27
    assert (found.checked, found.differing) == (27, 1)


class Broken(Challenger):
    """Fails on everything."""

    def opinion(self, case: Case) -> ShadowRecord:
        raise RuntimeError("no opinion")


def test_a_challenger_that_fails_is_a_finding(records: list[OutcomeRecord]) -> None:
    found = match(records[:20], {}, Broken(load_shipped()))
    assert (len(found), found.failed) == (0, 20)


def test_costs_are_those_of_the_protocol(records: list[OutcomeRecord]) -> None:
    base = replace(records[0], ttft_slo_s=1.0, tpot_slo_s=0.05, ttft_s=0.5, tpot_s=0.1, retries=0)
    changed = [
        base,
        replace(base, status=Status.FAILED, ttft_s=math.nan),
        replace(base, status=Status.CANCELLED),
        replace(base, retries=1),
        replace(base, ttft_s=math.nan),
        replace(base, priority=Priority.BATCH),
    ]
    found = match(changed, {}, Challenger(load_shipped()))
    assert np.allclose(found.cost, [4.5, 42.0, np.nan, np.nan, np.nan, 4.5], equal_nan=True)
    assert found.weight.tolist() == [1.0, 1.0, 1.0, 1.0, 1.0, 0.25]


def test_agreement_adds_up(matched: Matched) -> None:
    found = agreement(matched)
    assert found.overall.decisions == len(matched) == 700
    assert 0.6 < found.overall.agree <= 1.0
    assert sum(share.decisions for share in found.by_load) == 700
    mean = sum(share.decisions * share.agree for share in found.by_load) / 700
    assert mean == pytest.approx(found.overall.agree)
    assert [share.name for share in found.by_tenant] == ["none"]


def test_tenants_beyond_the_busiest_are_one(matched: Matched) -> None:
    renamed = [replace(r, tenant=f"t{i % 12}") for i, r in enumerate(matched.records)]
    found = agreement(replace(matched, records=tuple(renamed)))
    assert len(found.by_tenant) == 9
    assert found.by_tenant[-1].name == "all others"
    assert sum(share.decisions for share in found.by_tenant) == 700


def test_predictions_meet_reality(matched: Matched) -> None:
    found = {each.target: each for each in accuracy(matched)}
    assert set(found) == {"ttft", "tpot", "output"}
    for each in found.values():
        # Both predict by the same rules, so medians are the same.
        assert each.champion.mdape == pytest.approx(each.challenger.mdape, rel=1e-4)
    assert found["ttft"].challenger.within_p90 == pytest.approx(0.9, abs=0.06), "widened as in a router"
    assert found["output"].loss.value == pytest.approx(1.0, abs=1e-3)
    agreed = {each.target: each for each in accuracy(matched, agreed=True)}
    assert agreed["ttft"].outcomes == int(matched.agrees.sum())


def test_a_worse_predictor_is_seen(matched: Matched) -> None:
    slower = [replace(said, champions=1.6 * said.champions) for said in matched.opinions]
    found = {each.target: each for each in accuracy(replace(matched, opinions=tuple(slower)))}
    assert found["ttft"].loss.lo > 1.1
    assert found["ttft"].challenger.mdape > found["ttft"].champion.mdape
    assert found["output"].loss.hi < 1.05


def test_few_outcomes_make_no_figure(records: list[OutcomeRecord]) -> None:
    assert accuracy(match(records[:20], {}, Challenger(load_shipped()))) == ()


def test_estimates_of_the_policy_itself_are_one(matched: Matched) -> None:
    """A target that chooses what the log's policy prefers, 95 times in 100 of what was done."""
    same = []
    for record, said in zip(matched.records, matched.opinions, strict=True):
        chance = np.full(len(record.mask), 0.05 / 4, dtype=np.float32)
        best = record.choice if record.propensity > 0.5 else int(np.argmax(record.scores))  # type: ignore[arg-type]
        chance[best] += 0.95
        same.append(replace(said, probabilities=chance, choice=best))
    found = off_policy(replace(matched, opinions=tuple(same)))
    assert found.estimates["ips"].mean_weight == pytest.approx(1.0, abs=1e-5)
    assert found.estimates["dr"].ratio.value == pytest.approx(1.0, abs=0.02)
    assert found.estimates["dr"].effective == pytest.approx(700, rel=1e-3)
    assert 0.0 < found.explored < 0.1


def test_the_worst_choices_cost_more(matched: Matched) -> None:
    """Who always takes what costs most is found out, by the few explored decisions and the model."""
    worst = []
    for record, said in zip(matched.records, matched.opinions, strict=True):
        assert record.scores is not None
        chance = np.zeros(len(record.mask), dtype=np.float32)
        chance[int(np.argmin(record.scores))] = 1.0
        choice = int(np.argmin(record.scores))
        worst.append(replace(said, probabilities=chance, choice=choice))
    found = off_policy(replace(matched, opinions=tuple(worst)))
    assert found.estimates["dr"].ratio.value > 1.3
    assert found.estimates["dr"].effective < 100


def test_without_propensities_nothing_is_estimated(matched: Matched) -> None:
    unknown = tuple(replace(record, propensity=math.nan) for record in matched.records)
    found = off_policy(replace(matched, records=unknown))
    assert found.estimates == {}
    assert "propensity" in found.note
