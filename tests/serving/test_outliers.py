"""Replicas that answer much later than their peers are left out for a while."""

from __future__ import annotations

import asyncio

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.flight import Flight
from steersman.serving.headers import NO_HINTS
from steersman.serving.outliers import OutlierWatch
from steersman.serving.parts import build_parts
from steersman.serving.trust import Trust
from steersman.traces.schema import Request
from tests.serving.backends import Behaviour, Received, events, stream
from tests.serving.harness import chat, eventually, rig, settings_for

NOW_S = 500.0


class Rig:
    """A fleet whose delays a test tells."""

    def __init__(self, count: int, **options: float) -> None:
        self.now_s = NOW_S
        listed = [{"id": f"r{i}", "url": f"http://r{i}", "models": ["m"]} for i in range(count)]
        settings = settings_for([], backends=listed, outliers=options)
        self.parts = build_parts(settings, clock=lambda: self.now_s)
        self.watch = OutlierWatch(self.parts.fleet, settings.outliers, self.parts.metrics)

    def answered(self, index: int, ttft_s: float, expected_s: float = 0.5, times: int = 20) -> None:
        delays = self.parts.fleet.replicas[index].standing.delays
        for _ in range(times):
            token = object()
            delays.await_answer(token, self.now_s - ttft_s, expected_s)
            delays.answered(token, self.now_s)

    async def out(self) -> list[int]:
        await self.watch.step(self.now_s)
        trust: Trust = self.parts.fleet.trust
        return [i for i, r in enumerate(self.parts.fleet.replicas) if trust.is_out(r, self.now_s)]


async def test_one_that_is_much_later_than_expected_is_out_and_comes_back() -> None:
    rig = Rig(4)
    for i in range(3):
        rig.answered(i, 0.6)
    rig.answered(3, 6.0)
    assert await rig.out() == [3]
    rig.now_s += 31.0
    assert await rig.out() == []
    assert rig.parts.fleet.trust.ramp(rig.parts.fleet.replicas[3], rig.now_s) < 0.2, "by slow start"


async def test_one_that_is_as_late_again_is_out_for_longer() -> None:
    rig, pauses_s = Rig(4), []
    for _ in range(6):
        for i in range(4):
            rig.answered(i, 6.0 if i == 3 else 0.6)
        assert await rig.out() == [3]
        standing = rig.parts.fleet.replicas[3].standing
        pauses_s.append(standing.ejected_until_s - rig.now_s)
        rig.now_s = standing.ejected_until_s + 1.0
    assert pauses_s == [30.0, 60.0, 120.0, 240.0, 300.0, 300.0]
    rig.now_s += 301.0
    for i in range(4):
        rig.answered(i, 6.0 if i == 3 else 0.6)
    assert await rig.out() == [3]
    assert rig.parts.fleet.replicas[3].standing.ejected_until_s - rig.now_s == 30.0


async def test_slow_hardware_and_a_busy_pool_are_no_exceptions() -> None:
    rig = Rig(4)
    rig.answered(0, 0.6, expected_s=0.5)
    rig.answered(1, 0.6, expected_s=0.5)
    rig.answered(2, 0.6, expected_s=0.5)
    rig.answered(3, 6.0, expected_s=5.0)
    assert await rig.out() == []
    busy = Rig(4)
    for i in range(4):
        busy.answered(i, 20.0 + i)
    assert await busy.out() == []


async def test_what_is_fast_anyway_is_never_too_late() -> None:
    rig = Rig(4)
    for i in range(4):
        rig.answered(i, 0.5 if i == 3 else 0.01, expected_s=0.01)
    assert await rig.out() == []


async def test_what_still_waits_counts_once_it_is_late() -> None:
    rig = Rig(4)
    for i in range(3):
        rig.answered(i, 0.6)
    delays = rig.parts.fleet.replicas[3].standing.delays
    waiting = [object() for _ in range(12)]
    for token in waiting:
        delays.await_answer(token, rig.now_s, 0.5)
    assert await rig.out() == []
    rig.now_s += 8.0
    assert await rig.out() == [3]
    for token in waiting:
        delays.forget(token)
    assert delays.recent(rig.now_s, 30.0, 4.0)[0] == 0


async def test_few_answers_and_few_peers_say_nothing() -> None:
    rig = Rig(4)
    for i in range(4):
        rig.answered(i, 6.0 if i == 3 else 0.6, times=9)
    assert await rig.out() == []
    two = Rig(2)
    two.answered(0, 0.6)
    two.answered(1, 60.0)
    assert await two.out() == []


async def test_zero_is_never() -> None:
    rig = Rig(4, factor=0.0)
    for i in range(4):
        rig.answered(i, 60.0 if i == 3 else 0.6)
    assert await rig.out() == []


@given(st.lists(st.floats(0.01, 100.0), min_size=1, max_size=8), st.floats(0.1, 1.0))
async def test_never_more_than_a_share_of_a_pool(delays_s: list[float], share: float) -> None:
    rig = Rig(len(delays_s), max_ejected_share=share, factor=1.5)
    for i, ttft_s in enumerate(delays_s):
        rig.answered(i, ttft_s)
    out = await rig.out()
    assert len(out) <= max(share * len(delays_s), 1.0)
    if out:
        assert np.argmax(delays_s) in out, "the latest first"


async def test_only_streams_tell_when_their_first_token_came() -> None:
    parts = build_parts(settings_for([], backends=[{"url": "http://r0", "models": ["m"]}]))
    delays = parts.fleet.replicas[0].standing.delays
    for streaming, expected in ((False, 0), (True, 1)):
        request = Request("r", parts.clock(), 100, model="m", stream=streaming)
        route = parts.router.choose(parts.router.prepare(request, parts.fleet.pools["m"], NO_HINTS))
        assert route is not None
        flight = Flight(route, parts.fleet)
        assert delays.recent(parts.clock() + 900.0, 999.0, 4.0)[0] == expected, "late by now"
        flight.abort(0)
        assert delays.recent(parts.clock() + 900.0, 999.0, 4.0)[0] == 0


def after(delay_s: float) -> Behaviour:
    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(delay_s)
        await stream(events(2))(request, writer)

    return answer


async def test_over_real_sockets() -> None:
    outliers = {"least_ttft_s": 0.2, "min_answers": 3}
    async with rig(after(0.0), after(0.0), after(0.8), outliers=outliers) as (router, fleet):
        ejected = 'steersman_ejections_total{reason="outlier",replica="b2"}'

        async def counted() -> bool:
            # Few at a time: what a busy machine adds stays small beside the delay.
            await asyncio.gather(*(router.post(chat(stream=True)) for _ in range(3)))
            return await router.metric(ejected) == 1.0

        await eventually(counted)
        had = len(fleet[2].received)
        await asyncio.gather(*(router.post(chat(stream=True)) for _ in range(6)))
        assert len(fleet[2].received) == had
