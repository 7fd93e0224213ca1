"""The drift detector and the live errors."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.predictors.drift import REFERENCE_OUTCOMES, DriftDetector, LiveError

Draw = Callable[[np.random.Generator, int], NDArray[np.float64]]
NOISE: dict[str, Draw] = {
    "normal": lambda rng, n: rng.normal(0.0, 0.3, n),
    "narrow": lambda rng, n: rng.normal(0.05, 0.03, n),
    "laplace": lambda rng, n: rng.laplace(0.1, 0.3, n),
    "heavy": lambda rng, n: 0.2 * rng.standard_t(3, n),
    "skewed": lambda rng, n: 0.4 * np.log(rng.exponential(size=n)),
}

WIDE = {"skewed": 600}
"""Outcomes until a change shows where residuals scatter by more than it."""


@pytest.mark.parametrize("name", NOISE)
def test_there_are_few_false_alarms(name: str) -> None:
    detector, alarms = DriftDetector(), 0
    for residual in NOISE[name](np.random.default_rng(1), 60_000).tolist():
        if detector.observe(residual):
            alarms += 1
            detector.restart()
    assert alarms <= 3, "less than one in 20 000 outcomes"


@pytest.mark.parametrize("name", NOISE)
@pytest.mark.parametrize("shift", [math.log(1.4), -math.log(1.4)])
def test_a_change_of_forty_percent_shows_soon(name: str, shift: float) -> None:
    detector, rng = DriftDetector(), np.random.default_rng(2)
    for residual in NOISE[name](rng, REFERENCE_OUTCOMES + 500).tolist():
        assert not detector.observe(residual)
    after = (NOISE[name](rng, WIDE.get(name, 150)) + shift).tolist()
    assert any(detector.observe(residual) for residual in after)
    assert detector.drifted
    assert detector.statistic > 1.0


def test_when_it_began_is_known_well_enough() -> None:
    """Before the alarm, by about as many outcomes as came since the change."""
    detector, rng, came = DriftDetector(), np.random.default_rng(4), 0
    for residual in rng.normal(0.0, 0.2, REFERENCE_OUTCOMES + 300).tolist():
        detector.observe(residual)
    for residual in rng.normal(0.4, 0.2, 100).tolist():
        came += 1
        if detector.observe(residual):
            break
    assert detector.drifted
    assert 0.7 * came <= detector.run <= came + 25


def test_errors_that_grow_in_both_directions_show_too() -> None:
    detector, rng = DriftDetector(), np.random.default_rng(3)
    for residual in rng.normal(0.0, 0.2, REFERENCE_OUTCOMES).tolist():
        detector.observe(residual)
    assert any(detector.observe(residual) for residual in rng.normal(0.0, 0.5, 200).tolist())


def test_an_alarm_is_raised_once_until_the_restart() -> None:
    detector = DriftDetector(reference=10)
    raised = [detector.observe(0.0 if i < 10 else 5.0) for i in range(100)]
    assert sum(raised) == 1
    detector.restart()
    assert not detector.drifted
    assert [detector.observe(5.0) for _ in range(100)] == [False] * 100, "this is the reference now"


@given(st.lists(st.floats(-1e6, 1e6), max_size=60))
def test_no_residual_breaks_it(residuals: list[float]) -> None:
    detector = DriftDetector(reference=5)
    for residual in residuals:
        detector.observe(residual)
    assert math.isfinite(detector.statistic)
    assert detector.statistic >= 0.0


CASES = st.lists(
    st.tuples(st.floats(0.001, 100.0), st.floats(0.001, 100.0), st.floats(0.001, 100.0)), max_size=60
)


@given(CASES)
def test_live_errors_are_those_of_the_last_outcomes(cases: list[tuple[float, float, float]]) -> None:
    live = LiveError(0.02, window=16)
    for actual, p50, p90 in cases:
        live.observe(actual, p50, p90)
    assert live.count == len(cases)
    errors = [abs(p50 - actual) / actual for actual, p50, _ in cases if actual >= 0.02][-16:]
    covered = [actual <= p90 for actual, _, p90 in cases][-16:]
    assert live.mdape == pytest.approx(np.median(errors)) if errors else math.isnan(live.mdape)
    if covered:
        assert live.coverage_p90 == pytest.approx(np.mean(covered))
    else:
        assert math.isnan(live.coverage_p90)
