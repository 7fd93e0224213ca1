"""The estimates are right where the answer can be worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.offpolicy.estimators import ESTIMATORS, Logged, estimate
from steersman.agents.offpolicy.known_case import (
    ARRIVES,
    COST,
    LOGGING,
    TARGET,
    TRUTH,
    WRONG,
    draw,
    known_case,
)
from steersman.traces.errors import ConfigError


def population() -> Logged:
    """Every (kind, replica) exactly as often as it comes in 2 000 decisions: 0.7 * 0.05 * 2 000 = 70
    times kind 0 at replica 2, and so on. The costs are their means."""
    times = np.round(2000 * ARRIVES[:, None] * LOGGING).astype(np.int64)
    assert times.sum() == 2000
    kind, done = (np.repeat(axis.ravel(), times.ravel()) for axis in np.indices(times.shape))
    return Logged(
        cost=COST[kind, done],
        propensity=LOGGING[kind, done],
        chance=TARGET[kind, done],
        modelled=WRONG[kind, done],
        expected=(TARGET * WRONG).sum(axis=1)[kind],
    )


def test_the_truth_by_hand() -> None:
    kind_0 = 0.1 * 1.0 + 0.9 * 2.0 + 0.0 * 4.0
    kind_1 = 0.0 * 3.0 + 0.2 * 1.5 + 0.8 * 1.0
    assert pytest.approx(0.7 * kind_0 + 0.3 * kind_1) == TRUTH == pytest.approx(1.66)


def test_on_the_whole_population_all_are_exact() -> None:
    found = estimate(population())
    for name in ESTIMATORS:
        assert found[name].value == pytest.approx(TRUTH, rel=1e-12), name
        assert found[name].mean_weight == pytest.approx(1.0)
        assert found[name].clipped == 0.0
    logged = float((ARRIVES[:, None] * LOGGING * COST).sum())
    assert found["dr"].ratio.value == pytest.approx(TRUTH / logged)


def test_on_a_sample_they_come_near_and_their_intervals_hold_the_truth() -> None:
    case = known_case()
    assert case.dr_error < 0.01
    assert case.estimates["ips"] == pytest.approx(TRUTH, rel=0.03)
    within = 0
    for seed in range(60):
        logged = draw(3000, seed)
        ratio = estimate(logged, seed=seed, resamples=400)["dr"].ratio
        truth = TRUTH / float((ARRIVES[:, None] * LOGGING * COST).sum())
        within += ratio.lo <= truth <= ratio.hi
    assert within >= 50, "of 60 intervals of 95 %"


def test_a_perfect_model_needs_no_weights() -> None:
    """With q right, DR is exact on average even where the propensities are wrong."""
    logged = population()
    right = replace(
        logged,
        propensity=np.full(len(logged), 0.5),
        modelled=logged.cost,
        expected=np.where(logged.expected == 1.5, 1.9, 1.1),
    )
    found = estimate(right)
    assert found["dr"].value == pytest.approx(TRUTH)
    assert found["ips"].value != pytest.approx(TRUTH, rel=0.05)


def test_the_same_policy_costs_what_it_did_cost() -> None:
    logged = population()
    same = replace(logged, chance=logged.propensity, expected=logged.modelled)
    for one in estimate(same).values():
        assert (one.ratio.value, one.ratio.lo, one.ratio.hi) == pytest.approx((1.0, 1.0, 1.0))
        assert one.effective == pytest.approx(len(logged))


def test_effective_sample_size_and_clipping_by_hand() -> None:
    """Weights 4, 4, 0, 0, cut to 3: (3 + 3)^2 / (9 + 9) = 2 of four decisions count, half are cut."""
    logged = Logged(
        cost=np.ones(4),
        propensity=np.full(4, 0.25),
        chance=np.array([1.0, 1.0, 0.0, 0.0]),
        modelled=np.zeros(4),
        expected=np.zeros(4),
    )
    found = estimate(logged, clip=3.0)
    assert found["ips"].effective == pytest.approx(2.0)
    assert found["ips"].clipped == 0.5
    assert found["ips"].value == pytest.approx(1.5)
    assert found["snips"].value == pytest.approx(1.0)


def test_without_overlap_nothing_is_said_for_it() -> None:
    logged = replace(population(), chance=np.zeros(2000))
    found = estimate(logged)
    assert found["ips"].effective == 0.0
    assert np.isnan(found["snips"].value)


@given(st.integers(1, 40), st.integers(0, 1000))
def test_they_do_not_mind_the_unit_of_cost(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = rng.uniform(0.1, 1.0, size=(5, n))
    one = estimate(Logged(*columns), resamples=50)
    columns[[0, 3, 4]] *= 7.0
    other = estimate(Logged(*columns), resamples=50)
    for name in ESTIMATORS:
        assert other[name].value == pytest.approx(7.0 * one[name].value)
        assert other[name].ratio.lo == pytest.approx(one[name].ratio.lo)
        assert 0.0 < one[name].effective <= n + 1e-9


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="propensity"):
        replace(population(), propensity=np.zeros(2000))
    with pytest.raises(ValueError, match="shapes"):
        replace(population(), cost=np.ones(3))
    empty = np.empty(0)
    with pytest.raises(ConfigError, match="log more"):
        estimate(Logged(empty, empty, empty, empty, empty))
