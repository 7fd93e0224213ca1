"""When a refit is due."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.alarm import Alarm


def test_it_waits_from_the_last_alarm_but_not_for_ever() -> None:
    alarm = Alarm(100)
    assert not alarm.is_due(10**6)
    alarm.look(1, 1_000, 10.0)
    alarm.look(2, 1_050, 11.0)
    assert not alarm.is_due(1_149)
    assert alarm.is_due(1_150)
    assert alarm.since_s == 11.0
    for more in range(3, 9):
        alarm.look(more, 1_000 + 30 * more, 10.0 + more)
    assert alarm.is_due(1_200), "twice the wait from the first"


def test_what_was_replaced_is_refitted_once_more_and_what_was_kept_is_accepted() -> None:
    alarm = Alarm(100)
    alarm.look(1, 1_000, 10.0)
    alarm.settled(1_100, replaced=True)
    alarm.look(0, 1_150, 12.0)
    assert not alarm.is_due(1_199)
    assert alarm.is_due(1_200)
    assert alarm.since_s == 10.0
    alarm.settled(1_200, replaced=True)
    assert not alarm.is_due(1_399)
    assert alarm.is_due(1_400)
    alarm.settled(1_400, replaced=False)
    assert not alarm.is_due(10**6)
    assert alarm.since_s is None


def test_a_new_alarm_begins_anew() -> None:
    alarm = Alarm(100)
    alarm.look(1, 1_000, 10.0)
    alarm.settled(5_000, replaced=True)
    alarm.look(1, 6_000, 20.0)
    assert alarm.since_s == 20.0
    assert not alarm.is_due(6_099)
    assert alarm.is_due(6_100)


@given(st.lists(st.integers(0, 6), max_size=50), st.integers(1, 50))
def test_every_alarm_comes_due(drifted: list[int], wait: int) -> None:
    alarm, outcomes = Alarm(wait), 0
    for count in drifted:
        outcomes += 7
        alarm.look(count, outcomes, float(outcomes))
    assert alarm.is_due(outcomes + 2 * wait) == any(drifted)
