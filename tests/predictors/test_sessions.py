"""Sessions: turns are counted, ends are noticed, and what is expected is what happens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.sessions import BANDS, IDLE_S, SessionHistory


def play(history: SessionHistory, lengths: list[int], tenant: str = "a", start_s: float = 0.0) -> float:
    """Sessions of so many turns one after the other; the time when all of them are over."""
    now_s = start_s
    for number, turns in enumerate(lengths):
        for _ in range(turns):
            history.begin(tenant, f"{start_s}-{number}", now_s)
            now_s += 1.0
    return now_s + IDLE_S


def expected(history: SessionHistory, turn: int, now_s: float, tenant: str = "a") -> float:
    """Further turns expected at this turn of a new session."""
    for _ in range(turn - 1):
        history.begin(tenant, "asking", now_s)
    return history.begin(tenant, "asking", now_s)[2]


def test_turns_are_counted_until_the_session_is_idle() -> None:
    history = SessionHistory()
    assert [history.begin("a", "s", now_s)[1] for now_s in (0.0, 1.0, 2.0)] == [1, 2, 3]
    assert history.begin("b", "s", 2.0)[1] == 1
    assert history.begin("a", "s", 2.0 + IDLE_S)[1] == 1


@pytest.mark.parametrize("turns", [1, 2, 4, 12, 40])
def test_sessions_of_equal_length_are_foreseen(turns: int) -> None:
    """Exactly at a session's end only where a band begins there: within a band the share is constant."""
    history = SessionHistory()
    now_s = play(history, [turns] * 400)
    assert expected(history, 1, now_s) == pytest.approx(turns - 1, rel=0.35, abs=0.1)


@given(st.floats(0.2, 0.95), st.integers(1, 30))
def test_memoryless_sessions_always_have_as_much_to_come(share: float, turn: int) -> None:
    history = SessionHistory()
    rng = np.random.default_rng(0)
    now_s = play(history, rng.geometric(1.0 - share, 600).tolist())
    mean = share / (1.0 - share)
    assert expected(history, 1, now_s) == pytest.approx(mean, rel=0.2, abs=0.1)
    assert 0.0 < expected(history, turn, now_s) < 3.0 * mean + 2.0


def test_what_is_expected_falls_with_the_turn_where_sessions_have_a_length() -> None:
    history = SessionHistory()
    now_s = play(history, [20] * 200)
    seen = [history.begin("a", "asking", now_s)[2] for _ in range(17)]
    assert seen[0] > seen[8] > seen[16]


def test_tenants_are_apart_and_little_evidence_says_little() -> None:
    history = SessionHistory()
    now_s = play(history, [1] * 100, "short")
    now_s = play(history, [30] * 20, "long", now_s)
    assert expected(history, 1, now_s, "short") < 0.1
    assert expected(history, 1, now_s, "long") > 10
    assert expected(history, 1, now_s, "unknown") == pytest.approx(1.0)


def test_memory_is_bounded() -> None:
    history = SessionHistory(most_sessions=10, most_tenants=3)
    for number in range(100):
        history.begin(f"tenant-{number}", "s", 0.0)
    assert len(history) == 10


def test_a_long_life_forgets_what_was() -> None:
    history = SessionHistory()
    now_s = play(history, [10] * 3000)
    now_s = play(history, [1] * 6000, start_s=now_s)
    assert expected(history, 1, now_s) < 3.0


@given(st.lists(st.integers(1, 60), max_size=12), st.integers(1, 80))
def test_whatever_happened_the_expectation_is_sound(lengths: list[int], turn: int) -> None:
    history = SessionHistory()
    now_s = play(history, lengths)
    assert 0.0 <= expected(history, turn, now_s) < 1e5
    assert list(BANDS) == sorted(BANDS)
