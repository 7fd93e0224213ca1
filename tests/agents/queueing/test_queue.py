from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.queueing.lane import Held
from steersman.agents.queueing.queue import RequestQueue
from steersman.agents.queueing.settings import QueueSettings
from steersman.traces.errors import ConfigError
from steersman.traces.settings import parse_settings

NEVER = float("inf")


def held(
    priority: int = 0,
    arrival_s: float = 0.0,
    *,
    work_s: float = 0.1,
    late_at_s: float = NEVER,
    size_bytes: int = 0,
) -> Held:
    return Held(priority, arrival_s, work_s, late_at_s, size_bytes)


def queue(**changes: Any) -> RequestQueue:
    return RequestQueue(QueueSettings(**changes))


def drained(waiting: RequestQueue, now_s: float) -> list[Held]:
    """In the order in which they go."""
    order = []
    while (turn := waiting.first(now_s)) is not None:
        waiting.take(turn.held, now_s)
        order.append(turn.held)
    return order


def test_levels_are_strict_and_the_shortest_goes_first_within_one() -> None:
    waiting = queue()
    long, short = held(1, work_s=2.0), held(1, work_s=0.1)
    background, batch, urgent = held(3), held(2), held(0, 5.0, work_s=9.0)
    for one in (background, long, batch, short, urgent):
        assert waiting.offer(one) == []
    assert waiting.depth == (1, 2, 1, 1)
    assert drained(waiting, 6.0) == [urgent, short, long, batch, background]
    assert len(waiting) == 0


def test_a_long_job_is_overtaken_for_a_time_that_its_length_bounds() -> None:
    waiting = queue(stretch=10.0)
    long = held(0, 0.0, work_s=1.0)
    before, after = held(0, 9.0 - 1.1, work_s=0.1), held(0, 9.2, work_s=0.1)
    for one in (long, before, after):
        waiting.offer(one)
    assert drained(waiting, 10.0) == [before, long, after]


def test_without_stretch_it_is_first_come_first_served() -> None:
    waiting = queue(stretch=0.0)
    arrivals = [held(0, float(i), work_s=9.0 - i) for i in range(9)]
    for one in arrivals:
        waiting.offer(one)
    assert drained(waiting, 9.0) == arrivals


@pytest.mark.parametrize("late", ["serve", "yield", "refuse"])
def test_what_is_late(late: str) -> None:
    waiting = queue(late=late)
    lost, timely = held(0, 0.0, late_at_s=1.0), held(0, 1.5, late_at_s=4.0)
    lower = held(1, 0.0)
    for one in (lost, timely, lower):
        waiting.offer(one)
    assert waiting.too_late(0.5) == []
    refused = waiting.too_late(2.0)
    assert refused == ([lost] if late == "refuse" else [])
    order = {"serve": [lost, timely, lower], "yield": [timely, lost, lower], "refuse": [timely, lower]}
    assert drained(waiting, 2.0) == order[late]


def test_what_has_aged_has_its_share_of_the_turns_and_no_more() -> None:
    waiting = queue(ageing_s=(9.0, 9.0, 9.0, 9.0), aged_share=0.25)
    old = [held(3, float(i) / 10) for i in range(5)]
    for one in old:
        waiting.offer(one)
    turns = []
    for i in range(20):
        waiting.offer(held(0, 20.0 + i, work_s=0.01))
        turn = waiting.first(20.0 + i)
        assert turn is not None
        turns.append(turn.held.priority == 3)
        assert turn.level == 0, "the aged have the rights of the highest class"
        waiting.take(turn.held, 20.0 + i)
    assert sum(turns) in (4, 5)
    assert all(turns[i : i + 4].count(True) <= 1 for i in range(17))


def test_the_aged_of_each_class_take_turns_the_longest_aged_first_within_one() -> None:
    waiting = queue(ageing_s=(1.0, 2.0, 3.0, 4.0), aged_share=1.0)
    batch = [held(2, 0.1 * i, work_s=3.0 - i) for i in range(3)]
    background, urgent = held(3, 0.4), held(0, 6.0)
    for one in (*batch, background, urgent):
        waiting.offer(one)
    waiting.first(6.5)
    assert drained(waiting, 6.5) == [urgent, background, *batch]


def test_whoever_is_driven_out_of_a_full_queue_each_class_keeps_its_share() -> None:
    waiting = queue(max_requests=20, kept_share=0.1, late="serve")
    background = [held(3, float(i)) for i in range(5)]
    for one in background:
        assert waiting.offer(one) == []
    shed = [gone for i in range(40) for gone in waiting.offer(held(0, 5.0 + i))]
    assert waiting.depth == (18, 0, 0, 2)
    assert shed[:3] == background[:1:-1], "the latest go, and the oldest stay"


@pytest.mark.parametrize("newcomer", [0, 1, 2, 3])
def test_when_it_is_full_the_lowest_class_goes(newcomer: int) -> None:
    waiting = queue(max_requests=3)
    short, long, urgent = held(2, work_s=0.1), held(2, work_s=3.0), held(0)
    for one in (short, long, urgent):
        waiting.offer(one)
    new = held(newcomer, 1.0, work_s=1.0)
    assert waiting.offer(new) == [new if newcomer == 3 else long]
    assert len(waiting) == 3


def test_bodies_are_bounded_too() -> None:
    waiting = queue()
    small, large = held(1, size_bytes=10), held(1, 1.0, size_bytes=80)
    assert waiting.offer(small, spare_bytes=100.0) == []
    assert waiting.offer(large, spare_bytes=90.0) == []
    assert waiting.size_bytes == 90
    urgent = held(0, 2.0, size_bytes=30)
    assert waiting.offer(urgent, spare_bytes=10.0) == [large]
    alone = held(0, 3.0, size_bytes=200)
    assert waiting.offer(alone, spare_bytes=60.0) == [small, alone]
    assert waiting.size_bytes == 30


def test_the_pace_tells_how_long_it_will_take() -> None:
    waiting = queue()
    for i in range(400):
        waiting.offer(held(0, float(i)))
    for i in range(200):
        turn = waiting.first(400.0 + 0.5 * i)
        assert turn is not None
        waiting.take(turn.held, 400.0 + 0.5 * i)
    assert waiting.drain_s() == pytest.approx(100.0, rel=0.01)


def test_unknown_ways_of_being_late_are_refused() -> None:
    with pytest.raises(ConfigError, match="late"):
        parse_settings({"late": "drop"}, QueueSettings, source="queue")


ARRIVALS = st.lists(
    st.tuples(
        st.floats(0.0, 2.0),  # since the one before
        st.integers(0, 3),
        st.floats(0.0, 3.0),  # work
        st.floats(0.1, 5.0),  # until it is late
        st.sampled_from(["take", "leave", "wait"]),
    ),
    max_size=80,
)


@given(ARRIVALS, st.sampled_from(["serve", "yield", "refuse"]), st.integers(1, 12))
@settings(deadline=None)
def test_everyone_is_accounted_for(arrivals: Any, late: str, most: int) -> None:
    waiting = queue(late=late, max_requests=most, ageing_s=(2.0, 3.0, 4.0, 5.0), aged_share=0.3)
    inside: list[Held] = []
    now_s = 0.0
    for since_s, priority, work_s, patience_s, then in arrivals:
        now_s += since_s
        one = held(priority, now_s, work_s=work_s, late_at_s=now_s + patience_s, size_bytes=priority)
        inside.append(one)
        for gone in [*waiting.offer(one), *waiting.too_late(now_s)]:
            inside.remove(gone)
        turn = waiting.first(now_s)
        assert (turn is None) == (not inside)
        if turn is not None and then == "take":
            waiting.take(turn.held, now_s)
            inside.remove(turn.held)
        elif inside and then == "leave":
            gone = inside.pop(len(inside) // 2)
            waiting.remove(gone)
            waiting.remove(gone)
        assert len(waiting) == len(inside) <= most
        assert waiting.size_bytes == sum(one.size_bytes for one in inside)
        assert waiting.depth == tuple(sum(o.priority == p for o in inside) for p in range(4))
    assert sorted(map(id, drained(waiting, now_s))) == sorted(map(id, inside)) or late == "refuse"


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.floats(0.1, 1.0))
@settings(deadline=None)
def test_nothing_starves(priorities: list[int], share: float) -> None:
    """However many of the higher classes keep coming, and age as well, each waits a bounded number of
    turns."""
    waiting = queue(ageing_s=(5.0, 5.0, 5.0, 5.0), aged_share=share, max_requests=10_000)
    first = [held(priority, 0.0, work_s=5.0) for priority in priorities]
    for one in first:
        waiting.offer(one)
    for i in range(400):
        waiting.offer(held(i % 2, 0.0, work_s=0.1))
    left = set(map(id, first))
    turns = 0
    while left:
        now_s = 5.0 + 0.001 * turns
        waiting.offer(held(0, now_s, work_s=0.0))
        turn = waiting.first(now_s)
        assert turn is not None
        waiting.take(turn.held, now_s)
        left.discard(id(turn.held))
        turns += 1
        assert turns <= 4 * (len(first) + 1) / share + 2
