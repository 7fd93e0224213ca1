"""The circuit breaker: its arithmetic by itself, and what requests do to it."""

from __future__ import annotations

import asyncio
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.breaker import Breaker, Circuit, ErrorWindow
from steersman.serving.trust_settings import BreakerSettings
from tests.serving.backends import Behaviour, Received, completion, silent, whole
from tests.serving.harness import Routed, chat, eventually, rig

SETTINGS = BreakerSettings(min_requests=10, open_s=5.0, max_open_s=15.0, probes=2)
GOOD = whole(completion())
CALM = {"health": {"interval_s": 30.0, "failures": 100}}
"""Only the breaker decides."""


def opened(breaker: Breaker, at_s: float) -> None:
    while breaker.state(at_s) is Circuit.CLOSED:
        breaker.failed(at_s)


def test_it_opens_above_the_rate_and_not_before_there_are_enough() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(18):
        breaker.passed(0.0)
    assert not breaker.failed(0.0)
    assert not breaker.failed(0.0), "2 of 20 are 10 %, and no more"
    assert breaker.failed(0.0)
    assert breaker.state(4.9) is Circuit.OPEN
    few = Breaker(SETTINGS)
    assert [few.failed(0.0) for _ in range(10)] == [False] * 9 + [True]


def test_what_was_long_ago_does_not_count() -> None:
    breaker = Breaker(SETTINGS)
    for _ in range(9):
        breaker.failed(0.0)
    assert not breaker.failed(31.0)
    assert breaker.state(31.0) is Circuit.CLOSED


def test_half_open_it_lets_some_through_and_closes_when_all_are_answered() -> None:
    breaker = Breaker(SETTINGS)
    opened(breaker, 0.0)
    assert not breaker.admits(4.9)
    assert not breaker.enter(4.9)
    assert breaker.state(5.0) is Circuit.HALF_OPEN
    assert [breaker.admits(5.0) and breaker.enter(5.0) for _ in range(3)] == [True, True, False]
    breaker.leave()
    assert breaker.admits(5.0), "one that was cancelled makes room"
    assert [breaker.passed(6.0) for _ in range(2)] == [False, True]
    assert breaker.state(6.0) is Circuit.CLOSED
    assert not breaker.failed(6.0), "it begins anew"


def test_a_probe_that_fails_opens_it_for_twice_as_long() -> None:
    breaker = Breaker(SETTINGS)
    opened(breaker, 0.0)
    now_s, pauses_s = 5.0, []
    for _ in range(3):
        breaker.enter(now_s)
        assert breaker.failed(now_s)
        breaker.leave()
        began_s = now_s
        while breaker.state(now_s) is Circuit.OPEN:
            now_s += 0.5
        pauses_s.append(now_s - began_s)
    assert pauses_s == [10.0, 15.0, 15.0]


def test_while_it_may_not_open_it_counts() -> None:
    breaker = Breaker(SETTINGS)
    assert not any(breaker.failed(0.0, may_open=False) for _ in range(20))
    assert breaker.failed(0.0)


@given(
    st.lists(st.tuples(st.floats(0.0, 9.0), st.booleans()), max_size=60),
    st.floats(1.0, 50.0),
)
def test_the_window_is_never_longer_than_it_says_nor_shorter_than_nine_tenths(
    events: list[tuple[float, bool]], window_s: float
) -> None:
    window, now_s, seen = ErrorWindow(), 0.0, []
    for pause_s, failed in events:
        now_s += pause_s
        window.add(now_s, window_s, failed=failed)
        seen.append((now_s, failed))
        total, failures = window.counts(now_s, window_s)
        inside = [f for at_s, f in seen if at_s > now_s - 0.9 * window_s]
        maybe = [f for at_s, f in seen if at_s > now_s - window_s * (1.0 + 1e-9)]
        assert len(inside) <= total <= len(maybe)
        assert sum(inside) <= failures <= sum(maybe)


@given(st.lists(st.sampled_from(["pass", "fail", "enter", "leave", "wait"]), max_size=80))
def test_it_never_lets_more_probes_through_than_it_should(events: list[str]) -> None:
    breaker, now_s, inside = Breaker(SETTINGS), 0.0, 0
    opened(breaker, now_s)
    for event in events:
        if event == "pass":
            breaker.passed(now_s)
        elif event == "fail":
            breaker.failed(now_s)
        elif event == "enter" and breaker.admits(now_s):
            inside += breaker.enter(now_s)
        elif event == "leave" and inside:
            breaker.leave()
            inside -= 1
        elif event == "wait":
            now_s += 2.0
        assert 0 <= inside <= SETTINGS.probes


def every(n: int, bad: Behaviour) -> Behaviour:
    """Every n-th request goes bad."""
    numbers = count(1)

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await (bad if next(numbers) % n == 0 else GOOD)(request, writer)

    return answer


def circuit(router: Routed, index: int) -> Circuit:
    breaker = router.parts.fleet.replicas[index].standing.breaker
    return breaker.state(router.parts.clock())


def varied(i: int) -> object:
    return chat(f"question {i}")


async def test_a_replica_that_fails_now_and_then_is_left_out_and_tried_again() -> None:
    breaker = {"min_requests": 10, "open_s": 0.4, "probes": 2}
    flaky = every(4, whole(b"{}", status=500))
    async with rig(flaky, GOOD, GOOD, breaker=breaker, **CALM) as (router, fleet):
        for i in range(60):
            assert (await router.post(varied(i)))[0] == 200
            if circuit(router, 0) is Circuit.OPEN:
                break
        assert circuit(router, 0) is Circuit.OPEN
        had = len(fleet[0].received)
        for i in range(10):
            assert (await router.post(varied(100 + i)))[0] == 200
        assert len(fleet[0].received) == had
        assert await router.metric('steersman_replica_ejected{replica="b0"}') == 1.0
        fleet[0].answer = GOOD
        await eventually(lambda: circuit(router, 0) is Circuit.HALF_OPEN)
        for i in range(12):
            assert (await router.post(varied(200 + i)))[0] == 200
        assert circuit(router, 0) is Circuit.CLOSED
        assert await router.metric('steersman_replica_ramp{replica="b0"}') < 1.0
        opened_times = 'steersman_ejections_total{reason="breaker",replica="b0"}'
        assert await router.metric(opened_times) == 1.0


@pytest.mark.parametrize("status", [400, 404, 422, 429])
async def test_errors_of_the_client_do_not_open_it(status: int) -> None:
    breaker = {"min_requests": 5}
    refusing = whole(b"{}", status=status)
    async with rig(refusing, refusing, breaker=breaker, **CALM) as (router, _):
        for i in range(30):
            assert (await router.post(varied(i)))[0] == status
        assert circuit(router, 0) is circuit(router, 1) is Circuit.CLOSED


async def test_a_busy_503_is_no_failure() -> None:
    busy = whole(b"{}", status=503, headers="retry-after: 0\r\n")
    async with rig(busy, GOOD, breaker={"min_requests": 5}, **CALM) as (router, _):
        for i in range(20):
            assert (await router.post(varied(i)))[0] == 200
        assert circuit(router, 0) is Circuit.CLOSED
        assert await router.metric('steersman_replica_failures_total{replica="b0"}') == 0.0


async def test_when_all_fail_they_are_all_still_asked() -> None:
    bad = whole(b"{}", status=500)
    async with rig(bad, bad, breaker={"min_requests": 5}, retries={"attempts": 0}, **CALM) as (
        router,
        fleet,
    ):
        for i in range(40):
            assert (await router.post(varied(i)))[0] == 500
        assert len(fleet[0].received) + len(fleet[1].received) == 40
        assert sum(circuit(router, i) is Circuit.OPEN for i in (0, 1)) == 1, "half a pool at most"


async def test_a_client_that_leaves_a_probe_makes_room_for_another() -> None:
    breaker = {"min_requests": 5, "open_s": 0.1, "probes": 1}
    bad = whole(b"{}", status=500)
    async with rig(bad, GOOD, breaker=breaker, **CALM) as (router, fleet):
        for i in range(20):
            await router.post(varied(i))
        fleet[0].answer = silent
        await eventually(lambda: circuit(router, 0) is Circuit.HALF_OPEN)
        had = len(fleet[0].received)
        for again in (1, 2):
            asking = [asyncio.create_task(router.post(varied(100 * again + i))) for i in range(4)]
            await eventually(lambda again=again: len(fleet[0].received) == had + again)
            for task in asking:
                task.cancel()
            await eventually(lambda again=again: fleet[0].hung_up >= again)
