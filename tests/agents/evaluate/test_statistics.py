from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.evaluate.statistics import jain_index, max_over_mean, paired_ratio

figures = st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8).map(np.array)


@given(baseline=st.lists(figures, min_size=1, max_size=4), factor=st.floats(0.2, 5.0))
@settings(max_examples=50, deadline=None)
def test_a_constant_factor_is_found_without_any_width(
    baseline: list[NDArray[np.float64]], factor: float
) -> None:
    # Common random numbers: however much seeds and cells vary, they cancel in pairs.
    ratio = paired_ratio({i: (factor * b, b) for i, b in enumerate(baseline)}, resamples=200)
    assert (ratio.value, ratio.lo, ratio.hi) == pytest.approx((factor, factor, factor))


@given(a=figures, seed=st.integers(0, 1000))
@settings(max_examples=50, deadline=None)
def test_swapping_the_two_inverts_the_ratio_and_its_interval(a: NDArray[np.float64], seed: int) -> None:
    b = np.random.default_rng(seed).permutation(a) + 0.5
    there = paired_ratio({"cell": (a, b)}, resamples=300)
    back = paired_ratio({"cell": (b, a)}, resamples=300)
    assert back.value == pytest.approx(1 / there.value)
    assert back.lo == pytest.approx(1 / there.hi)
    assert back.hi == pytest.approx(1 / there.lo)
    assert there.lo <= there.value * (1 + 1e-9)
    assert there.value <= there.hi * (1 + 1e-9)


def test_every_cell_counts_the_same_whatever_its_seeds() -> None:
    one, four = np.ones(1), np.ones(4)
    ratio = paired_ratio({"few": (4 * one, one), "many": (four, four)})
    assert ratio.value == pytest.approx(2.0)


def test_the_interval_covers_the_truth_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for i in range(200):
        cells: dict[object, tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        for cell in range(2):
            b = rng.lognormal(0.0, 1.0, 20)
            cells[cell] = (b * 0.9 * rng.lognormal(0.0, 0.1, 20), b)
        ratio = paired_ratio(cells, seed=i, resamples=500)
        covered += ratio.lo <= 0.9 <= ratio.hi
    assert 0.88 <= covered / 200 <= 0.99


def test_what_is_not_a_pair_of_positive_figures_is_refused() -> None:
    for a, b in [(np.ones(2), np.ones(3)), (np.zeros(2), np.ones(2)), (np.ones(0), np.ones(0))]:
        with pytest.raises(ValueError, match="pairs of positive"):
            paired_ratio({"cell": (a, b)})
    with pytest.raises(ValueError, match="no cells"):
        paired_ratio({})


loads = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=50).map(np.array)


@given(loads)
def test_balance_stays_within_its_bounds(load: NDArray[np.float64]) -> None:
    assert 1.0 / len(load) - 1e-9 <= jain_index(load) <= 1.0 + 1e-9
    assert 1.0 - 1e-9 <= max_over_mean(load) <= len(load) + 1e-9


def test_balance_at_its_extremes() -> None:
    assert jain_index(np.array([3.0, 3.0, 3.0])) == pytest.approx(1.0)
    assert jain_index(np.array([9.0, 0.0, 0.0])) == pytest.approx(1.0 / 3.0)
    assert max_over_mean(np.array([9.0, 0.0, 0.0])) == pytest.approx(3.0)
    for nothing in (np.zeros(0), np.zeros(4)):
        assert jain_index(nothing) == max_over_mean(nothing) == 1.0
