from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.evaluate.statistics import (
    holm,
    jain_index,
    max_over_mean,
    non_inferiority,
    paired_ratio,
)

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


def test_holm_on_his_rule_by_hand() -> None:
    # Of four: 0.01 * 4, 0.02 * 3, 0.03 * 2 (not below 0.06), 0.2 * 1.
    assert holm([0.03, 0.01, 0.2, 0.02]) == pytest.approx([0.06, 0.04, 0.2, 0.06])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    assert holm([]) == []


@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_keeps_the_order_and_never_lowers_a_p_value(p: list[float]) -> None:
    adjusted = holm(p)
    assert all(p[i] <= adjusted[i] <= min(1.0, len(p) * max(p)) + 1e-12 for i in range(len(p)))
    assert all(adjusted[i] <= adjusted[j] for i in range(len(p)) for j in range(len(p)) if p[i] <= p[j])


def test_not_worse_needs_evidence_and_not_only_a_good_mean() -> None:
    rng = np.random.default_rng(0)
    b = rng.lognormal(0.0, 0.5, 20)
    clear = non_inferiority({"better": (0.95 * b * rng.lognormal(0.0, 0.01, 20), b)})["better"]
    assert clear.holds
    assert clear.ratio == pytest.approx(0.95, rel=0.02)
    noisy = non_inferiority({"noisy": (b * rng.lognormal(0.0, 0.5, 20), b)})["noisy"]
    assert not noisy.holds
    worse = non_inferiority({"worse": (1.05 * b, b)})["worse"]
    assert (worse.holds, worse.p) == (False, 1.0)
    same = non_inferiority({"same": (b, b)})["same"]
    assert (same.holds, same.p) == (True, 0.0)


def test_a_cell_at_the_margin_is_called_not_worse_rarely() -> None:
    rng = np.random.default_rng(1)
    false = 0
    for _ in range(100):
        cells = {}
        for cell in range(4):
            b = rng.lognormal(0.0, 0.5, 5)
            cells[cell] = (1.02 * b * rng.lognormal(0.0, 0.05, 5), b)
        false += any(verdict.holds for verdict in non_inferiority(cells).values())
    assert false <= 11  # of 5 expected at most


def test_one_seed_proves_nothing() -> None:
    with pytest.raises(ValueError, match="one seed shows no spread"):
        non_inferiority({"cell": (np.ones(1), np.ones(1))})
