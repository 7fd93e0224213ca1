"""How soon a slower replica is noticed, and how seldom one that is not."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from steersman.predictors.pace import REFERENCE_OUTCOMES, Pace


def alarms_at(residuals: list[float], pace: Pace | None = None) -> list[int]:
    watched = pace or Pace()
    return [i for i, r in enumerate(residuals) if watched.observe("tpot", 0.01 * math.exp(r), 0.01)]


@pytest.mark.parametrize(("factor", "within"), [(2.5, 20), (1.6, 30), (1 / 2.5, 20)])
def test_a_large_change_shows_within_some_tens_of_outcomes(factor: float, within: int) -> None:
    rng = np.random.default_rng(1)
    noise = rng.normal(0.1, 0.15, REFERENCE_OUTCOMES + 40)
    noise[REFERENCE_OUTCOMES:] += math.log(factor)
    (first,) = alarms_at(noise.tolist())
    assert 0 <= first - REFERENCE_OUTCOMES < within


@pytest.mark.parametrize("growing", [1.0, 3.0])
def test_there_are_few_false_alarms(growing: float) -> None:
    """Also where the scatter grows, as it does with load."""
    rng, pace, alarms = np.random.default_rng(2), Pace(), 0
    scale = np.linspace(0.1, 0.1 * growing, 30_000)
    for residual in (scale * rng.standard_t(4, len(scale))).tolist():
        if pace.observe("tpot", 0.01 * math.exp(residual), 0.01):
            alarms += 1
            pace.restart()
    assert alarms <= 1


def test_only_what_has_changed_learns_anew() -> None:
    pace = Pace()
    for _ in range(REFERENCE_OUTCOMES):
        pace.observe("ttft", 1.0, 1.0)
        pace.observe("tpot", 0.01, 0.01)
    for _ in range(30):
        pace.observe("tpot", 0.03, 0.01)
    assert pace.drifted == ["tpot"]
    pace.restart()
    assert pace.drifted == []
    assert pace.statistic("tpot") == 0.0
    assert sum(pace.observe("ttft", 3.0, 1.0) for _ in range(30)) == 1, "its reference is still known"


@given(st.lists(st.tuples(st.floats(), st.floats()), max_size=80))
@example([(1e-247, 1e77), (1e300, 1e-300)])
def test_nothing_that_is_measured_breaks_it(cases: list[tuple[float, float]]) -> None:
    pace = Pace()
    for actual_s, estimated_s in cases:
        pace.observe("ttft", actual_s, estimated_s)
    assert math.isfinite(pace.statistic("ttft"))
