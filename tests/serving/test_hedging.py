"""A second attempt beside one that is late."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors import ledger as L
from steersman.serving.flight import Flight
from steersman.serving.hedging import p99_s
from tests.serving.backends import Behaviour, Received, completion, events, reset, silent, stream, whole
from tests.serving.harness import CHAT, Routed, chat, eventually, rig
from tests.serving.test_flight import ACCOUNT, make_parts, route

TEXT = b"".join(events(3))
GOOD = stream(events(3))
HEDGING = {"enabled": True, "least_wait_s": 0.05}
STREAM = chat(stream=True)


async def hedges(router: Routed) -> dict[str, float]:
    """How often, by what came of it; and what was denied."""
    told = {}
    for name, label, values in (
        ("hedges", "result", ("won", "lost", "neither")),
        ("hedges_denied", "reason", ("budget", "nobody", "no_room", "slow")),
    ):
        for value in values:
            count = await router.metric(f'steersman_{name}_total{{{label}="{value}"}}')
            if count:
                told[value] = count
    return told


def balanced(router: Routed) -> bool:
    """All but what is counted since the last scrape, which the next one settles."""
    return not router.parts.fleet.state[:, L.INFLIGHT : L.SINCE_SCRAPE].any()


class Held:
    """A stream that begins when it is let go."""

    def __init__(self, *, headers_first: bool = False) -> None:
        self.let_go = asyncio.Event()
        self._headers_first = headers_first

    async def __call__(self, request: Received, writer: asyncio.StreamWriter) -> None:
        if self._headers_first:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n")
            writer.write(b"transfer-encoding: chunked\r\n\r\n")
            await writer.drain()
        await self.let_go.wait()
        await stream(events(3))(request, writer)


@pytest.mark.parametrize("headers_first", [False, True])
async def test_what_is_late_is_answered_elsewhere_and_the_loser_cancelled(headers_first: bool) -> None:
    late = Held(headers_first=headers_first)
    async with rig(late, GOOD, hedging=HEDGING) as (router, fleet):
        status, got, headers = await router.post(STREAM)
        assert (status, got) == (200, TEXT)
        assert headers["x-steersman-replica"] == "b1"
        await eventually(lambda: fleet[0].hung_up == 1)
        assert fleet[0].received[0].body == fleet[1].received[0].body
        assert await hedges(router) == {"won": 1.0}
        assert await router.metric('steersman_replica_requests_total{replica="b1",status="ok"}') == 1.0
        assert await router.metric('steersman_replica_requests_total{replica="b0",status="ok"}') == 0.0
        assert await router.metric("steersman_retries_total") == 0.0
        assert balanced(router)
        assert all(replica.health.healthy for replica in router.parts.fleet.replicas)


async def test_both_are_in_the_account_while_they_run_and_the_first_may_still_win() -> None:
    first, second = Held(), Held()
    async with rig(first, second, hedging=HEDGING) as (router, fleet):
        asking = asyncio.create_task(router.post(STREAM))
        await eventually(lambda: bool(fleet[1].received))
        state = router.parts.fleet.state
        assert state[:2, L.INFLIGHT].tolist() == [1.0, 1.0]
        first.let_go.set()
        status, got, headers = await asking
        assert (status, got, headers["x-steersman-replica"]) == (200, TEXT, "b0")
        await eventually(lambda: fleet[1].hung_up == 1)
        assert await hedges(router) == {"lost": 1.0}
        assert balanced(router)


@pytest.mark.parametrize(
    ("answers", "sections", "told"),
    [
        ((Held,), HEDGING, {"nobody": 1.0}),
        ((Held, GOOD), HEDGING | {"budget_burst": 0}, {"budget": 1.0}),
        ((Held, GOOD), {"least_wait_s": 0.05}, {}),
    ],
    ids=["nobody else", "no budget", "off by default"],
)
async def test_no_second_attempt(
    answers: tuple[Any, ...], sections: dict[str, Any], told: dict[str, float]
) -> None:
    made = [answer() if answer is Held else answer for answer in answers]
    async with rig(*made, hedging=sections) as (router, fleet):
        asking = asyncio.create_task(router.post(STREAM))
        await eventually(lambda: bool(fleet[0].received))

        async def as_told() -> bool:
            return await hedges(router) == told

        await eventually(as_told)
        await asyncio.sleep(0.2)  # in which one would have been made
        made[0].let_go.set()
        status, got, headers = await asking
        assert (status, got, headers["x-steersman-replica"]) == (200, TEXT, "b0")
        assert sum(len(backend.received) for backend in fleet) == 1


async def test_whole_answers_and_what_an_engine_keeps_are_not_hedged() -> None:
    body = completion()
    waits = Held()

    async def late(request: Received, writer: asyncio.StreamWriter) -> None:
        await waits.let_go.wait()
        await whole(body)(request, writer)

    async with rig(late, late, hedging=HEDGING) as (router, fleet):
        kept = {"model": "m", "input": "hi", "stream": True}
        asking = [
            asyncio.create_task(router.post()),
            asyncio.create_task(router.post(kept, path="/v1/responses")),
        ]
        await eventually(lambda: sum(len(backend.received) for backend in fleet) == 2)
        await asyncio.sleep(0.3)
        assert sum(len(backend.received) for backend in fleet) == 2
        waits.let_go.set()
        assert {answer[0] for answer in await asyncio.gather(*asking)} == {200}
        assert await hedges(router) == {}


async def test_one_that_fails_leaves_the_other_running() -> None:
    late = Held()

    async def breaks(request: Received, writer: asyncio.StreamWriter) -> None:
        late.let_go.set()
        await reset(request, writer)

    async with rig(late, breaks, hedging=HEDGING) as (router, _):
        status, got, headers = await router.post(STREAM)
        assert (status, got, headers["x-steersman-replica"]) == (200, TEXT, "b0")
        assert await hedges(router) == {"lost": 1.0}
        assert balanced(router)


async def test_if_both_fail_a_third_is_tried() -> None:
    fail = asyncio.Event()

    async def fails(request: Received, writer: asyncio.StreamWriter) -> None:
        await fail.wait()
        await reset(request, writer)

    async with rig(fails, fails, GOOD, GOOD, hedging=HEDGING) as (router, fleet):
        asking = asyncio.create_task(router.post(STREAM))
        await eventually(lambda: len(fleet[1].received) == 1)
        fail.set()
        status, got, headers = await asking
        assert (status, got, headers["x-steersman-replica"]) == (200, TEXT, "b2")
        assert await hedges(router) == {"neither": 1.0}
        assert [len(backend.received) for backend in fleet] == [1, 1, 1, 0]
        assert balanced(router)


async def test_a_client_that_leaves_ends_both() -> None:
    async with rig(silent, silent, hedging=HEDGING) as (router, fleet):
        asking = asyncio.create_task(router.client.post(router.url + CHAT, json=STREAM))
        await eventually(lambda: bool(fleet[0].received and fleet[1].received))
        asking.cancel()
        await eventually(lambda: fleet[0].hung_up == fleet[1].hung_up == 1)
        await eventually(lambda: balanced(router))
        assert not any(replica.waiting for replica in router.parts.fleet.replicas)


async def test_a_replica_that_is_taken_out_ends_its_own_attempt_alone() -> None:
    second = Held()
    async with rig(silent, second, hedging=HEDGING) as (router, fleet):
        asking = asyncio.create_task(router.post(STREAM))
        await eventually(lambda: bool(fleet[1].received))
        for leave in list(router.parts.fleet.replicas[0].waiting):
            leave()
        await eventually(lambda: fleet[0].hung_up == 1)
        second.let_go.set()
        status, got, headers = await asking
        assert (status, got, headers["x-steersman-replica"]) == (200, TEXT, "b1")
        assert [len(backend.received) for backend in fleet] == [1, 1]


async def test_the_budget_holds_however_many_are_late() -> None:
    late: Behaviour = silent
    hedging = HEDGING | {"budget_burst": 2, "budget_ratio": 0.0}
    async with rig(late, late, hedging=hedging, timeouts={"first_byte_s": 1.0}) as (router, fleet):
        answers = await asyncio.gather(*(router.post(STREAM) for _ in range(6)))
        assert {status for status, _, _ in answers} == {504}
        assert sum(len(backend.received) for backend in fleet) == 6 + 2
        assert await hedges(router) == {"neither": 2.0, "budget": 4.0}
        assert balanced(router)


@given(st.floats(1e-4, 100.0), st.floats(1.0, 10.0))
def test_p99_is_beyond_p90_and_equal_where_nothing_scatters(p50_s: float, ratio: float) -> None:
    assert p99_s(p50_s, p50_s) == pytest.approx(p50_s)
    assert p99_s(p50_s, p50_s * ratio) >= p50_s * ratio * (1 - 1e-9)


def test_an_attempt_that_was_overtaken_late_counts_as_late() -> None:
    parts = make_parts(1)
    parts.fleet.state[0, L.MEAN_TTFT_S] = 0.1
    delays = parts.fleet.replicas[0].standing.delays
    made = route(parts)
    flight, early = Flight(made, parts.fleet), Flight(route(parts), parts.fleet)
    flight.depart()
    made.widths.apply(made.dispatched_s + 100.0, made.modelled)  # by now p90 has passed
    now_s = made.dispatched_s + 100.0
    flight.overtaken(now_s)
    early._awaited = None
    early.overtaken(now_s)
    count, ratio, seen_s = delays.recent(now_s, 1000.0, 1e9)
    assert count == 1
    assert seen_s == pytest.approx(100.0)
    assert ratio > 1.0
    assert not parts.fleet.state[:, ACCOUNT].any()
