"""Arrival models: counts, order, determinism, rates and shapes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.traces.arrival_models import ArrivalModel, Daily, Gamma, OnOff, Poisson, Replay
from steersman.traces.errors import ConfigError

rates = st.floats(0.1, 100.0)
models = st.one_of(
    st.builds(Poisson, rates),
    st.builds(Gamma, rates, st.floats(0.2, 4.0)),
    st.builds(OnOff, rates, st.floats(1.0, 6.0), st.just(10.0), st.just(50.0)),
    st.builds(
        Daily, rates, st.floats(0.0, 1.0), st.floats(0.0, 23.9), st.floats(60.0, 1e5), st.floats(0.5, 2)
    ),
    st.just(Replay((3.0, 4.0, 4.0, 9.0))),
)


@given(models, st.integers(0, 300), st.integers(0, 2**32))
def test_count_order_and_determinism(model: ArrivalModel, count: int, seed: int) -> None:
    times = model.times(np.random.default_rng(seed), count=count)
    assert times.shape == (count,)
    assert np.isfinite(times).all()
    assert (times >= 0).all()
    assert (np.diff(times) >= 0).all()
    np.testing.assert_array_equal(times, model.times(np.random.default_rng(seed), count=count))


@given(models, st.floats(0.0, 50.0), st.integers(0, 2**32))
def test_duration_is_kept(model: ArrivalModel, duration_s: float, seed: int) -> None:
    times = model.times(np.random.default_rng(seed), duration_s=duration_s)
    assert (np.diff(times) >= 0).all()
    assert ((times >= 0) & (times < max(duration_s, 1e-300))).all()


@pytest.mark.parametrize(
    ("model", "tolerance"),
    [
        (Poisson(7.0), 0.03),
        (Gamma(7.0, cv=3.0), 0.06),
        (OnOff(7.0, burst_factor=6.0, on_s=2.0, off_s=10.0), 0.10),
        (Daily(7.0, amplitude=1.0, period_s=100.0), 0.03),
        (Replay(tuple(np.arange(1, 141) / 7.0)), 0.01),
    ],
)
def test_mean_rate(model: ArrivalModel, tolerance: float) -> None:
    by_duration = len(model.times(np.random.default_rng(1), duration_s=3000.0)) / 3000.0
    by_count = 20_000 / model.times(np.random.default_rng(2), count=20_000)[-1]
    assert by_duration == pytest.approx(7.0, rel=tolerance)
    assert by_count == pytest.approx(7.0, rel=tolerance)


@pytest.mark.parametrize("cv", [0.3, 1.0, 2.5])
def test_gamma_has_the_asked_variability(cv: float) -> None:
    gaps = np.diff(Gamma(5.0, cv).times(np.random.default_rng(0), count=50_000))
    assert gaps.std() / gaps.mean() == pytest.approx(cv, rel=0.05)


def test_bursts_are_bursty() -> None:
    times = OnOff(10.0, burst_factor=5.0, on_s=20.0, off_s=100.0).times(
        np.random.default_rng(0), duration_s=50_000
    )
    counts = np.bincount((times / 5.0).astype(int))
    assert counts.var() / counts.mean() > 10.0  # a Poisson process has 1
    assert np.quantile(counts, 0.99) / 5.0 == pytest.approx(50.0, rel=0.3)


def test_silence_between_bursts() -> None:
    model = OnOff(1.0, burst_factor=6.0, on_s=10.0, off_s=50.0)  # the low rate is exactly zero
    gaps = np.diff(model.times(np.random.default_rng(0), count=5_000))
    assert (gaps > 10.0).sum() > 20


def test_daily_cycle_peaks_when_it_says() -> None:
    model = Daily(2.0, amplitude=0.8, peak_hour=14.0)
    times = model.times(np.random.default_rng(0), duration_s=3 * 86_400.0)
    by_hour = np.bincount((times / 3600.0 % 24).astype(int), minlength=24) / 3.0 / 3600.0
    middle = (np.arange(24) + 0.5 - 14.0) * np.pi / 12.0
    np.testing.assert_allclose(by_hour, 2.0 * (1.0 + 0.8 * np.cos(middle)), atol=0.12)


@given(st.floats(0.0, 1.0), st.floats(0.0, 24.0))
def test_expected_arrivals_are_the_integral_of_the_rate(amplitude: float, peak_hour: float) -> None:
    model = Daily(3.0, amplitude, peak_hour, period_s=100.0)
    grid = np.linspace(0.0, 250.0, 20_001)
    rate = 3.0 * (1.0 + amplitude * np.cos(2 * np.pi * (grid / 100.0 - peak_hour / 24.0)))
    integral = np.concatenate(([0.0], np.cumsum((rate[1:] + rate[:-1]) / 2 * np.diff(grid))))
    np.testing.assert_allclose(model.expected(grid), integral, atol=1e-4)


def test_replay_repeats_with_the_same_rhythm() -> None:
    times = Replay((10.0, 11.0, 14.0)).times(np.random.default_rng(0), count=6)
    np.testing.assert_allclose(times, [0.0, 1.0, 4.0, 6.0, 7.0, 10.0])


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (
            lambda: Poisson(0.0).times(np.random.default_rng(0), count=1),
            "rate_rps = 0 must be a positive",
        ),
        (lambda: Gamma(1.0, cv=-1.0), "cv = -1 must be a positive number"),
        (
            lambda: OnOff(1.0, burst_factor=9.0, on_s=10, off_s=10),
            "burst_factor = 9 must be between 1 and",
        ),
        (lambda: Daily(1.0, amplitude=2.0), "amplitude = 2 must be between 0 and 1"),
        (lambda: Replay((1.0,)), "at least two recorded arrivals"),
        (lambda: Replay((2.0, 1.0)), "at least two recorded arrivals"),
    ],
)
def test_impossible_models_are_refused(make: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        make()  # type: ignore[operator]


def test_count_or_duration_but_not_both() -> None:
    with pytest.raises(TypeError, match="either count or duration_s"):
        Poisson(1.0).times(np.random.default_rng(0))
    with pytest.raises(TypeError, match="either count or duration_s"):
        Poisson(1.0).times(np.random.default_rng(0), count=1, duration_s=1.0)
