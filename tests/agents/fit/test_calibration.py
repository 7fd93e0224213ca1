"""Predicted against actual, by deciles."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.fit.calibration import BINS, calibration


def test_a_perfect_predictor_lies_on_the_diagonal() -> None:
    actual = np.linspace(1.0, 100.0, 1_000)
    found = calibration("ttft", "s", actual, actual, actual)
    assert np.array_equal(found.predicted, found.actual)
    assert (found.covered == 1.0).all()
    assert (np.diff(found.predicted) > 0).all()
    assert (found.cases, len(found.predicted)) == (1_000, BINS)


def test_what_is_always_too_low_shows_in_every_decile() -> None:
    p50 = np.random.default_rng(0).uniform(1.0, 9.0, 500)
    found = calibration("output", "tokens", p50, 1.5 * p50, 2.0 * p50)
    assert np.allclose(found.actual, 2.0 * found.predicted)
    assert (found.covered == 0.0).all()


@given(st.lists(st.floats(0.001, 1e3), min_size=1, max_size=40), st.integers(0, 99))
def test_deciles_are_in_order_and_shares_are_shares(values: list[float], seed: int) -> None:
    p50 = np.array(values)
    actual = p50 * np.random.default_rng(seed).lognormal(size=len(p50))
    found = calibration("tpot", "s", p50, 2.0 * p50, actual)
    assert (np.diff(found.predicted) >= 0).all()
    assert ((found.covered >= 0.0) & (found.covered <= 1.0)).all()
