"""The width of p90: nine in ten stay within it, whatever the errors, and nothing is known too early."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.predictors.latency import MOST_S
from steersman.predictors.width import LIMIT, QUEUED_S, STEP, Width, Widths

MODELLED = np.array([0.2, 0.3, 0.02, 0.03])


def share_within(
    noise: float, shift: float, spread: float, outcomes: int, seed: int
) -> tuple[float, Width]:
    """Of log-normal outcomes around a p50 of 1 s; the first fifth only teaches."""
    rng = np.random.default_rng(seed)
    actual = np.exp(shift + noise * rng.normal(size=outcomes))
    width, within = Width(), []
    for value in actual.tolist():
        within.append(value <= width.p90_s(1.0, math.exp(spread)))
        width.learn(1.0, math.exp(spread), value)
    return float(np.mean(within[outcomes // 5 :])), width


@settings(max_examples=25, deadline=None)
@given(
    noise=st.floats(0.05, 2.0),
    too_wide=st.floats(0.15, 6.0),
    shift=st.floats(-0.5, 0.5),
    seed=st.integers(0, 2**16),
)
def test_nine_in_ten_stay_within_on_errors_of_any_scale(
    noise: float, too_wide: float, shift: float, seed: int
) -> None:
    """Of a model that is off by `shift` standard deviations and whose spread is so many times theirs."""
    share, width = share_within(noise, shift * noise, too_wide * noise, 6_000, seed)
    assert abs(share - 0.9) < 0.02
    assert abs(width.log) < LIMIT


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-4, 1e4), min_size=1, max_size=800), st.floats(0.0, 3.0))
def test_the_share_outside_is_bounded_for_any_outcomes(actual: list[float], spread: float) -> None:
    """Also for an adversary's, as long as the factor is within its bounds. Steps only shrink: summed by
    parts, the moves of w bound the sum of (outside - 0.1) by twice its range over the least step."""
    width, outside, inside_bounds = Width(), 0, True
    for value in actual:
        outside += value > width.p90_s(1.0, math.exp(spread))
        width.learn(1.0, math.exp(spread), value)
        inside_bounds &= abs(width.log) < LIMIT
        assert abs(width.log) <= LIMIT
    if inside_bounds:
        assert abs(outside / len(actual) - 0.1) <= 2 * LIMIT / (STEP * len(actual)) + 1e-9


@settings(max_examples=200, deadline=None)
@given(
    taught=st.lists(st.tuples(st.booleans(), st.booleans()), max_size=300),
    p50=st.floats(1e-4, 100.0),
    spread=st.floats(0.0, 4.0),
    more=st.floats(0.0, 3.0),
    wider=st.floats(0.0, 3.0),
)
def test_p90_is_bounded_and_never_falls_with_the_queue(
    taught: list[tuple[bool, bool]], p50: float, spread: float, more: float, wider: float
) -> None:
    """Whatever was learned: a larger p50 and spread, as more queue gives, never lower p90."""
    widths = Widths()
    for outside, queued in taught:
        (widths.ttft_queued if queued else widths.ttft).count(outside=outside)
    assert widths.ttft_queued.log >= widths.ttft.log

    def served(median: float, log_ratio: float) -> float:
        p90 = min(median * math.exp(log_ratio), MOST_S)
        return float(widths.apply(0.0, np.array([median, max(p90, median), 0.02, 0.03]))[1])

    less = served(p50, spread)
    assert p50 <= less <= MOST_S
    assert served(p50 * math.exp(more), spread + wider) >= less * (1.0 - 1e-12)


def test_the_median_is_left_as_it_is() -> None:
    widths = Widths()
    for _ in range(50):
        widths.expect(0.0, MODELLED).first_token(9.0)
    served = widths.apply(1.0, MODELLED)
    assert served[[0, 2, 3]].tolist() == MODELLED[[0, 2, 3]].tolist()
    assert served[1] > 2.0 * MODELLED[1]
    assert MODELLED[1] == 0.3


def test_a_spread_of_nothing_can_grow() -> None:
    width = Width()
    for _ in range(100):
        width.learn(1.0, 1.0, 2.0)
    assert width.p90_s(1.0, 1.0) > 1.05


def test_what_queues_has_a_factor_of_its_own() -> None:
    widths = Widths()
    queued = np.array([2.0 * QUEUED_S, 3.0 * QUEUED_S, 0.02, 0.03])
    for _ in range(100):
        widths.expect(0.0, queued).first_token(60.0)
        widths.expect(0.0, MODELLED).first_token(0.1)
    assert widths.ttft.log < 0.0 < widths.ttft_queued.log


def test_a_ttft_is_too_long_once_its_time_has_passed() -> None:
    widths = Widths()
    awaited = widths.expect(10.0, MODELLED)
    widths.apply(10.29, MODELLED)
    assert widths.ttft.log == 0.0
    widths.apply(10.31, MODELLED)
    grown = widths.ttft.log
    assert grown > 0.0
    widths.apply(20.0, MODELLED)
    awaited.first_token(10.5)
    assert widths.ttft.log == grown, "it counts once"
    assert len(widths) == 0


def test_a_deadline_moves_with_the_width() -> None:
    widths = Widths()
    widths.expect(0.0, MODELLED)
    for _ in range(20):
        widths.ttft.count(outside=True)
    before = widths.ttft.log
    widths.apply(0.31, MODELLED)
    assert widths.ttft.log == before
    widths.apply(30.0, MODELLED)
    assert widths.ttft.log > before


@pytest.mark.parametrize("overdue", [False, True])
def test_what_is_aborted_teaches_nothing(overdue: bool) -> None:
    widths = Widths()
    for _ in range(30):
        widths.expect(0.0, MODELLED).first_token(0.1)
    before = widths.ttft.log
    awaited = widths.expect(0.0, MODELLED)
    if overdue:
        widths.apply(100.0, MODELLED)
        assert widths.ttft.log > before
    awaited.abort()
    assert widths.ttft.log == pytest.approx(before)
    widths.apply(1_000.0, MODELLED)
    assert widths.ttft.log == pytest.approx(before)


def test_memory_is_bounded_by_what_is_on_its_way() -> None:
    """Deadlines far in the future do not keep what is known."""
    widths = Widths()
    slow = np.array([1_000.0, 2_000.0, 0.02, 0.03])
    flying = [widths.expect(float(i), slow) for i in range(50)]
    for i in range(2_000):
        widths.expect(float(i), slow).first_token(1.0)
    assert len(widths) <= 300
    for awaited in flying:
        awaited.abort()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.floats(0.0, 5.0), st.floats(0.01, 3.0)), min_size=1, max_size=60))
def test_served_is_what_was_known(requests: list[tuple[float, float]]) -> None:
    """What is served at a moment is the same whatever the future brings."""
    cut = float(np.median([since for since, _ in requests]))

    def play(later: float) -> list[float]:
        widths, served = Widths(), []
        events = [(since, 1, i) for i, (since, _) in enumerate(requests)]
        ttft_s = [ttft if since + ttft <= cut else ttft + later for since, ttft in requests]
        events += [(since + ttft_s[i], 0, i) for i, (since, _) in enumerate(requests)]
        flying = {}
        for when, kind, i in sorted(events):
            if kind == 1:
                if when <= cut:
                    served.append(float(widths.apply(when, MODELLED)[1]))
                flying[i] = widths.expect(when, MODELLED)
            else:
                flying[i].first_token(ttft_s[i])
        return served

    assert play(0.0) == play(100.0)
