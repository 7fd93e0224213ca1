"""False alarms under the null over many looks, power against what has to be found, in simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.sequential import BETS, ODDS, BlockTest, RateTest, log_mean_exp, upper_rate

ALPHA = 0.05
LIMIT = math.log(1.0 / ALPHA)


def first_alarm(
    rng: np.random.Generator, rate_a: float, rate_b: float, share: float, looks: int, per_look: int
) -> int | None:
    """The look at which A is found worse."""
    test = RateTest(prior=0.01)
    n_a = rng.binomial(per_look, share, looks)
    k_a, k_b = rng.binomial(n_a, rate_a), rng.binomial(per_look - n_a, rate_b)
    for look in range(looks):
        test.add(int(n_a[look]), int(k_a[look]), int(per_look - n_a[look]), int(k_b[look]))
        if test.log_worse >= LIMIT:
            return look
    return None


@pytest.mark.parametrize(("rate", "share"), [(0.01, 0.05), (0.01, 0.5), (0.2, 0.2), (0.0005, 0.5)])
def test_false_alarms_are_rarer_than_alpha_over_many_looks(rate: float, share: float) -> None:
    rng = np.random.default_rng(1)
    alarms = sum(first_alarm(rng, rate, rate, share, 300, 60) is not None for _ in range(100))
    assert alarms <= 100 * ALPHA


def test_a_rate_that_changes_for_both_raises_no_alarm() -> None:
    """A burst that hits everybody, again and again."""
    rng = np.random.default_rng(2)
    alarms = 0
    for _ in range(60):
        test, worst = RateTest(prior=0.01), -math.inf
        for look in range(200):
            rate = 0.3 if look % 50 < 5 else 0.005
            n_a = int(rng.binomial(20, 0.2))
            test.add(n_a, int(rng.binomial(n_a, rate)), 20 - n_a, int(rng.binomial(20 - n_a, rate)))
            worst = max(worst, test.log_worse)
        alarms += worst >= LIMIT
    assert alarms <= 60 * ALPHA


@pytest.mark.parametrize(
    ("rate_a", "rate_b", "outcomes"),
    [
        (0.0292, 0.01, 1500),  # p99 30 % higher where the tail is exponential: 0.01 ** (1 / 1.3)
        (0.015, 0.005, 3000),  # errors 1 point more often
        (0.3, 0.01, 60),
    ],
)
def test_what_is_worse_is_found_within_so_many_of_its_outcomes(
    rate_a: float, rate_b: float, outcomes: int
) -> None:
    """At a share of 20 %, in nine of ten runs."""
    rng = np.random.default_rng(3)
    looks = outcomes * 5 // 50
    alarms = [first_alarm(rng, rate_a, rate_b, 0.2, looks, 50) for _ in range(30)]
    assert sum(alarm is not None for alarm in alarms) >= 27


def test_a_better_arm_is_found_better_and_never_worse() -> None:
    rng = np.random.default_rng(4)
    test = RateTest(prior=0.01)
    for _ in range(500):
        test.add(10, int(rng.binomial(10, 0.002)), 10, int(rng.binomial(10, 0.03)))
        assert test.log_worse < LIMIT
    assert test.log_better > LIMIT


@given(
    n_a=st.integers(0, 6),
    n_b=st.integers(0, 6),
    rate=st.floats(0.0, 1.0),
    before=st.tuples(st.integers(0, 500), st.integers(0, 500)),
)
@settings(max_examples=100)
def test_no_batch_is_worth_more_than_it_costs_if_both_are_alike(
    n_a: int, n_b: int, rate: float, before: tuple[int, int]
) -> None:
    """The exact expectation over all outcomes, for every factor and both directions."""
    total = [0.0] * (2 * len(ODDS))
    for k_a in range(n_a + 1):
        for k_b in range(n_b + 1):
            test = RateTest(prior=0.01, b=[max(before), min(before)])
            test.add(n_a, k_a, n_b, k_b)
            chance = float(math.comb(n_a, k_a) * math.comb(n_b, k_b))
            chance *= rate ** (k_a + k_b) * (1 - rate) ** (n_a + n_b - k_a - k_b)
            for i, log in enumerate(test.worse + test.better):
                total[i] += chance * math.exp(log)
    assert max(total) <= 1.0 + 1e-9


def test_an_arm_without_a_counterpart_proves_nothing() -> None:
    test = RateTest(prior=0.01)
    test.add(100, 90, 0, 0)
    assert test.log_worse == pytest.approx(0.0)


def test_alone_it_is_held_against_what_the_other_has_shown() -> None:
    rng = np.random.default_rng(5)
    alarms = 0
    for _ in range(40):
        test = RateTest(prior=0.01)
        test.add(100, 1, 2000, int(rng.binomial(2000, 0.01)))
        worst = -math.inf
        for _ in range(300):
            test.add_alone(20, int(rng.binomial(20, 0.01)))
            worst = max(worst, test.log_worse)
        alarms += worst >= LIMIT
    assert alarms <= 40 * ALPHA
    test = RateTest(prior=0.01)
    test.add(100, 1, 2000, 20)
    for _ in range(20):
        test.add_alone(20, 3)
    assert test.log_worse >= LIMIT


def run_blocks(rng: np.random.Generator, effect: float, share: float, count: int) -> float:
    """The most evidence there ever was; figures wander as a day does."""
    test, worst, level = BlockTest(), -math.inf, 0.0
    for _ in range(count):
        level = 0.9 * level + rng.normal()
        is_a = bool(rng.random() < share)
        test.add(level + effect * is_a + rng.normal(), share, is_a=is_a)
        worst = max(worst, test.log_worse)
    return worst


@pytest.mark.parametrize("share", [0.05, 0.5])
def test_stretches_that_wander_raise_no_alarm(share: float) -> None:
    rng = np.random.default_rng(6)
    alarms = sum(run_blocks(rng, 0.0, share, 200) >= LIMIT for _ in range(100))
    assert alarms <= 100 * ALPHA


def test_stretches_of_a_bad_arm_are_found() -> None:
    rng = np.random.default_rng(7)
    assert sum(run_blocks(rng, 6.0, 0.5, 40) >= LIMIT for _ in range(50)) >= 45


@given(
    seen=st.lists(st.floats(0.0, 1.0), max_size=20),
    figure=st.floats(0.0, 1.0),
    share=st.floats(0.01, 0.99),
)
def test_a_stretch_is_a_fair_bet(seen: list[float], figure: float, share: float) -> None:
    total = [0.0] * (2 * len(BETS))
    for is_a, chance in ((True, share), (False, 1.0 - share)):
        test = BlockTest(seen=sorted(seen), order=list(seen))
        test.add(figure, share, is_a=is_a)
        for i, log in enumerate(test.worse + test.better):
            total[i] += chance * math.exp(log)
    assert total == pytest.approx([1.0] * len(total))


def test_only_the_newest_stretches_are_ranked() -> None:
    test = BlockTest()
    for i in range(1200):
        test.add(float(i), 0.5, is_a=bool(i % 2))
    assert len(test.seen) == len(test.order) == 1000
    assert test.seen == sorted(test.order)


def test_upper_rates_are_above_what_was_seen_and_close_in() -> None:
    assert upper_rate(0, 0) == 0.5
    assert 0.01 < upper_rate(1000, 10) < 0.03
    assert 0.01 < upper_rate(100_000, 1000) < 0.0111
    assert upper_rate(100_000, 0) > 0.0


def test_a_mean_of_logs_does_not_overflow() -> None:
    assert log_mean_exp([1000.0, 0.0]) == pytest.approx(1000.0 - math.log(2.0))
    assert log_mean_exp([-1000.0, -1000.0]) == pytest.approx(-1000.0)
