"""A request that breaks whatever it touches takes nothing else with it."""

from __future__ import annotations

import asyncio

import orjson
import pytest

from tests.serving.backends import (
    Backend,
    Behaviour,
    Received,
    backends,
    completion,
    events,
    reset,
    stream,
    whole,
)
from tests.serving.harness import Routed, chat, eventually, rig, routing, settings_for

GOOD = whole(completion())
POISON = chat("poison")
CALM = {"health": {"interval_s": 30.0}}
"""Only what requests meet decides."""


def poisoned(harm: Behaviour) -> Behaviour:
    """Harm from bodies with poison in them, and good answers to all others."""

    async def answer(request: Received, writer: asyncio.StreamWriter) -> None:
        await (harm if b"poison" in request.body else GOOD)(request, writer)

    return answer


def well(router: Routed) -> int:
    return sum(replica.health.healthy for replica in router.parts.fleet.replicas)


@pytest.mark.parametrize(
    "harm",
    [whole(b"{}", status=500), reset, stream([], then="abort", headers_first=True)],
    ids=["500", "reset", "abort"],
)
async def test_a_client_that_insists_takes_no_replica_out(harm: Behaviour) -> None:
    bad = poisoned(harm)
    async with rig(bad, bad, bad, **CALM) as (router, _):
        for _ in range(10):
            assert (await router.post(POISON))[0] >= 500
        assert well(router) == 3
        assert (await router.post())[0] == 200
        assert await router.metric("steersman_blamed_requests_total") >= 1.0


async def test_a_body_that_breaks_replicas_is_refused_for_a_while() -> None:
    bad = poisoned(reset)
    retries = {"broken_rest_s": 0.5}
    async with rig(bad, bad, bad, bad, bad, retries=retries, **CALM) as (router, fleet):
        status, got, headers = await router.post(POISON)
        assert (status, orjson.loads(got)["error"]["code"]) == (503, "request_breaks_replicas")
        assert headers["retry-after"] == "1"
        assert sum(len(backend.received) for backend in fleet) == 3
        for _ in range(3):
            assert (await router.post(POISON))[0] == 503
        assert sum(len(backend.received) for backend in fleet) == 3, "it was not tried again"
        assert (await router.post(chat("another")))[0] == 200
        await asyncio.sleep(0.6)
        assert (await router.post(POISON))[0] == 503
        assert sum(len(backend.received) for backend in fleet) == 3 + 1 + 1, "one attempt more"


async def test_a_body_that_crashes_engines_leaves_some() -> None:
    crashed: list[str] = []

    def crashing(index: int) -> Behaviour:
        async def crash(request: Received, writer: asyncio.StreamWriter) -> None:
            crashed.append(f"b{index}")
            asyncio.get_running_loop().call_soon(asyncio.ensure_future, fleet[index].stop())
            await reset(request, writer)

        return poisoned(crash)

    fleet: list[Backend]
    async with (
        backends(*(crashing(i) for i in range(6))) as fleet,
        routing(settings_for(fleet)) as router,
    ):
        for _ in range(5):
            assert (await router.post(POISON))[0] == 503
        assert len(crashed) == 3
        await eventually(lambda: well(router) == 3)
        assert (await router.post())[0] == 200


async def test_of_three_replicas_one_is_left() -> None:
    bad = poisoned(reset)
    async with rig(bad, bad, bad, **CALM) as (router, fleet):
        await router.post(POISON)
        assert sum(len(backend.received) for backend in fleet) == 2


async def test_a_replica_that_fails_what_others_answer_is_charged_and_goes_out() -> None:
    async with rig(reset, GOOD, **CALM) as (router, _):
        for i in range(8):
            assert (await router.post(chat(f"question {i}")))[0] == 200
        assert [r.health.healthy for r in router.parts.fleet.replicas] == [False, True]


async def test_the_verdict_does_not_wait_for_the_end_of_a_long_answer() -> None:
    endless = stream(events(3), then="hang")
    async with rig(reset, endless, **CALM) as (router, _):
        asked = [asyncio.create_task(router.post(chat(f"question {i}", stream=True))) for i in range(8)]
        await eventually(lambda: well(router) == 1)
        for task in asked:
            task.cancel()


async def test_an_answer_wipes_the_slate() -> None:
    """The body was unlucky, not poison: replicas it met were going down."""
    async with rig(reset, reset, GOOD, GOOD, **CALM) as (router, _):
        for _ in range(6):
            assert (await router.post(chat("popular")))[0] == 200
        assert not router.parts.proxy._blame._records
        assert [r.health.healthy for r in router.parts.fleet.replicas[2:]] == [True, True]


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("steersman.serving.blame.MOST_REMEMBERED", 5)
    async with rig(reset, health={"interval_s": 30.0, "failures": 100}) as (router, _):
        for i in range(12):
            assert (await router.post(chat(f"question {i}")))[0] == 503
        assert len(router.parts.proxy._blame._records) == 5
