from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.env.emulator.clock import EngineClock


def test_it_runs_at_its_rate_from_zero() -> None:
    clock = EngineClock(100.0, 4.0)
    assert clock.engine_s(100.0) == 0.0
    assert clock.engine_s(102.5) == 10.0
    assert clock.wall_s(10.0) == 102.5


def test_it_stands_still_and_goes_on_where_it_stood() -> None:
    clock = EngineClock(0.0, 1.0)
    clock.set_rate(10.0, 0.0)
    assert clock.engine_s(99.0) == 10.0
    assert clock.wall_s(11.0) == math.inf
    clock.set_rate(50.0, 2.0)
    assert clock.engine_s(51.0) == 12.0


def test_never_is_never() -> None:
    assert EngineClock(0.0, 1.0).wall_s(math.inf) == math.inf


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0.01, 100)), max_size=10), st.floats(0, 1e4))
def test_time_is_continuous_and_can_be_turned_around(
    changes: list[tuple[float, float]], ahead: float
) -> None:
    clock, wall_s = EngineClock(0.0, 1.0), 0.0
    for wait_s, rate in changes:
        wall_s += wait_s
        before = clock.engine_s(wall_s)
        clock.set_rate(wall_s, rate)
        assert clock.engine_s(wall_s) == before
    assert clock.engine_s(clock.wall_s(clock.engine_s(wall_s) + ahead)) == pytest.approx(
        clock.engine_s(wall_s) + ahead, rel=1e-9, abs=1e-6
    )
