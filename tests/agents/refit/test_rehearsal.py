"""The drift experiment: what it plays, and how it counts."""

from __future__ import annotations

import numpy as np
import pytest

from steersman.agents.refit.drift_figures import drift_drawing, drift_rows, play_drift
from steersman.agents.refit.rehearsal import (
    SLOWDOWN,
    Learning,
    Player,
    drift_course,
    recovery_requests,
)
from steersman.env.scenario import load_scenario
from steersman.predictors.latency import AnalyticLatency
from steersman.predictors.length import FallbackLength
from steersman.traces.readers import load_trace

SCENARIO, TRACE = load_scenario("demo"), load_trace("azure-chat")


def test_the_course_slows_down_and_turns_over() -> None:
    course = drift_course(SCENARIO, TRACE, requests=400, seed=0)
    later = course.trace.arrival_s >= course.flip_at_s
    assert abs(int(later.sum()) - 400) < 150
    assert course.trace.input_tokens[later].mean() > 2.0 * course.trace.input_tokens[~later].mean()
    played = Player(course, Learning.FROZEN, AnalyticLatency(), FallbackLength()).play()
    tpot_s = played.actual[:, 1]
    slow = np.nanmedian(tpot_s[played.slow_at : played.flip_at])
    assert slow > 0.9 * SLOWDOWN * np.nanmedian(tpot_s[: played.slow_at])


def test_the_corrector_makes_up_for_slower_hardware_and_rows_tell() -> None:
    played = play_drift(
        SCENARIO, TRACE, AnalyticLatency(), FallbackLength(), requests=500, min_outcomes=10**6, seeds=[1]
    )
    rows = {str(row["name"]): row["value"] for row in drift_rows(played)}
    frozen, corrected = (rows[f"drift.slow.tpot.{way}.mdape"] for way in ("frozen", "corrected"))
    assert isinstance(frozen, float)
    assert isinstance(corrected, float)
    assert corrected < 0.7 * frozen
    assert rows["drift.recovery_requests"] >= 100.0  # type: ignore[operator]
    assert "<svg" in drift_drawing(played, "tpot")
    np.testing.assert_array_equal(
        played[Learning.CORRECTED][0].predicted, played[Learning.REFITTED][0].predicted
    )


@pytest.mark.parametrize(("bad", "expected"), [(0, 100), (30, 100), (70, 121), (500, 551), (950, None)])
def test_recovery_is_counted_from_the_change(bad: int, expected: int | None) -> None:
    """More than half of the window has to be good."""
    errors = np.full(1_200, 0.1)
    errors[200 : 200 + bad] = 1.0
    assert recovery_requests(errors, 0.1, 200, 1_200) == expected


def test_requests_without_an_error_are_counted_but_not_judged() -> None:
    errors = np.full(600, np.nan)
    errors[::2] = 0.1
    assert recovery_requests(errors, 0.1, 100, 600) == 199
