"""A challenger says what it would have done, as it would have done it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steersman.agents.guard import GuardSettings
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.shadow.challenger import Case, Challenger, chances
from steersman.env.scenario import load_scenario
from steersman.predictors.bundle import load_bundle
from steersman.predictors.features import LENGTH_FEATURES
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Decision
from tests.serving.graphs import policy_bundle
from tests.support.simulated_log import demo_trace, simulated_log

MASK = np.array([True, True, False, True])


@pytest.fixture(scope="module")
def records() -> list[OutcomeRecord]:
    return simulated_log(demo_trace(60), load_scenario("demo").replicas, explore=0.0)


def case_of(record: OutcomeRecord) -> Case:
    case = Case.of(record)
    assert case is not None
    return case


def test_one_that_minimises_marginal_cost_agrees_with_marginal_cost(
    tmp_path: Path, records: list[OutcomeRecord]
) -> None:
    """The log's policy and this graph are the same rule, so every choice is the same."""
    policy_bundle(tmp_path / "b", "v1")
    challenger = Challenger(load_bundle(tmp_path / "b"))
    for record in records:
        said = challenger.opinion(case_of(record))
        assert said.agrees, record.request_id
        assert (said.policy, said.challenger, said.propensity) == ("learned", "v1", 1.0)
        assert said.probabilities is not None
        assert said.probabilities[said.choice] == 1.0
        assert np.allclose(said.own, said.champions), "the same choice has the same prediction"
        logged = (record.ttft_p50_s, record.ttft_p90_s, record.tpot_p50_s, record.tpot_p90_s)
        assert said.champions == pytest.approx(logged), "without models both predict analytically"


def test_who_may_not_be_chosen_is_not(tmp_path: Path, records: list[OutcomeRecord]) -> None:
    policy_bundle(tmp_path / "b", "v1")
    challenger = Challenger(load_bundle(tmp_path / "b"))
    for record in records[:20]:
        free = challenger.opinion(case_of(record))
        mask = record.mask.copy()
        mask[free.choice] = False
        other = int(np.flatnonzero(mask)[0])
        said = challenger.opinion(case_of(replace(record, mask=mask, choice=other)))
        assert mask[said.choice]


def test_its_guard_speaks_for_it(records: list[OutcomeRecord]) -> None:
    """What its fallback would have done is its opinion too."""
    challenger = Challenger(load_shipped(), GuardSettings(max_age_s=1e-6))
    said = challenger.opinion(case_of(records[30]))
    assert said.fallback_reason == "stale_snapshot"
    assert said.policy == "marginal-cost"


def test_it_predicts_lengths_itself(records: list[OutcomeRecord]) -> None:
    record = records[40]
    features = record.request_features.copy()
    features[len(LENGTH_FEATURES)] = 12_345.0  # the champion's prediction
    said = Challenger(load_shipped()).opinion(case_of(replace(record, request_features=features)))
    assert said.output_p50 == pytest.approx(record.output_p50)


def test_what_is_no_decision_is_no_case(records: list[OutcomeRecord]) -> None:
    record = records[0]
    for change in (
        {"choice": -1},
        {"choice": len(record.replica_ids)},
        {"state": record.state[:, :5]},
        {"request_features": record.request_features[:3]},
        {"match_tokens": np.empty(0)},
        {"mask": ~record.mask},
    ):
        assert Case.of(replace(record, **change)) is None


@pytest.mark.parametrize(
    ("decision", "expected"),
    [
        (Decision(1, "p", propensity=1.0), [0.0, 1.0, 0.0, 0.0]),
        (
            Decision(3, "p", propensity=0.5, scores=np.array([2, 1, 2, 2], dtype=np.float32)),
            [0.5, 0.0, 0.0, 0.5],
        ),
        (Decision(3, "p", propensity=0.3, scores=np.array([2, 1, 2, 2], dtype=np.float32)), None),
        (Decision(3, "p", propensity=0.3), None),
        (Decision(-1, "p"), None),
    ],
)
def test_chances_as_far_as_a_decision_tells(decision: Decision, expected: list[float] | None) -> None:
    found = chances(decision, MASK)
    assert found is None if expected is None else np.allclose(found, expected)  # type: ignore[arg-type]
