"""What is still to come shrinks while it comes, and never runs out before the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.remaining import LEAST_RATIO, remaining

P50 = st.floats(1, 1e5)
RATIO = st.floats(1, 50)
PRODUCED = st.floats(0, 1e6)


@given(P50, RATIO)
def test_before_the_first_token_it_is_what_was_predicted(p50: float, ratio: float) -> None:
    assert remaining(p50, p50 * ratio, 0.0) == pytest.approx((p50, p50 * ratio))


@given(P50, RATIO, PRODUCED, st.floats(0, 1e6))
def test_it_is_sound_whatever_was_produced(
    p50: float, ratio: float, produced: float, limit: float
) -> None:
    half, most = remaining(p50, p50 * ratio, produced, limit)
    assert 1.0 <= half <= most < 1e12
    if limit > produced + 1.0:
        assert most <= limit - produced


@given(P50, st.floats(LEAST_RATIO, 50), PRODUCED, st.floats(0, 1e5))
def test_the_more_is_produced_the_longer_the_whole_answer(
    p50: float, ratio: float, produced: float, more: float
) -> None:
    before = remaining(p50, p50 * ratio, produced)
    after = remaining(p50, p50 * ratio, produced + more)
    for earlier, later in zip(before, after, strict=True):
        assert later + produced + more >= (earlier + produced) * (1.0 - 1e-9)


@given(P50, st.floats(LEAST_RATIO, 3), st.floats(0, 0.2), st.floats(0.01, 0.1))
def test_at_first_it_shrinks_with_every_token(
    p50: float, ratio: float, produced: float, more: float
) -> None:
    """For p90 below 3 p50: with heavier tails, what has lasted soon promises to last."""
    before, _ = remaining(p50, p50 * ratio, produced * p50)
    after, _ = remaining(p50, p50 * ratio, (produced + more) * p50)
    assert after <= max(before, 1.0)


def test_it_is_the_quantile_of_those_that_go_on() -> None:
    """Lengths drawn from the distribution itself."""
    rng = np.random.default_rng(0)
    p50, p90 = 200.0, 700.0
    steepness = np.log(9.0) / np.log(p90 / p50)
    share = rng.uniform(0.0, 1.0, 400_000)
    lengths = p50 * (share / (1.0 - share)) ** (1.0 / steepness)
    for produced in (10.0, 100.0, 500.0, 2000.0):
        left = lengths[lengths > produced] - produced
        assert remaining(p50, p90, produced) == pytest.approx(np.quantile(left, (0.5, 0.9)), rel=0.05)
