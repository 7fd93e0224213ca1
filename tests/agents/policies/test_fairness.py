from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.policies.fairness import SLICES, RecentTokens

events = st.lists(st.tuples(st.integers(0, 3), st.floats(1.0, 100.0), st.floats(0.0, 40.0)), max_size=40)


@given(events)
def test_sums_are_those_of_the_window_up_to_a_slice(uses: list[tuple[int, float, float]]) -> None:
    window_s = 60.0
    recent, now_s = RecentTokens(window_s), 0.0
    past: list[tuple[int, float, float]] = []
    for user, tokens, gap_s in uses:
        now_s += gap_s
        recent.add(user, tokens, now_s)
        past.append((user, tokens, now_s))
        for someone in range(4):
            told = recent.of(someone, now_s)
            assert total(past, someone, now_s - window_s * (1 - 1 / SLICES) + 1e-6) - 1e-3 <= told
            assert told <= total(past, someone, now_s - window_s - 1e-6) + 1e-3


def total(past: list[tuple[int, float, float]], user: int, after_s: float) -> float:
    return sum(tokens for who, tokens, at_s in past if who == user and at_s > after_s)


def test_bounds_are_of_those_who_used_anything() -> None:
    recent = RecentTokens(60.0)
    assert recent.bounds(0.0) == (0.0, 0.0)
    recent.add(1, 10.0, 0.0)
    recent.add(2, 40.0, 30.0)
    assert recent.bounds(31.0) == (10.0, 40.0)
    assert recent.bounds(70.0) == (40.0, 40.0)
    assert recent.of(1, 70.0) == pytest.approx(0.0)
