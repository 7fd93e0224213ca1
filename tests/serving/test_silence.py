"""A replica that freezes gets no more requests, and what waits there goes elsewhere."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.parts import Parts, build_parts
from steersman.serving.pulse import Pulse
from tests.serving.backends import Backend, completion, events, stream, whole
from tests.serving.harness import Routed, chat, eventually, rig, settings_for

TEXT = b"".join(events(3))
GOOD = stream([TEXT])
WHOLE = whole(completion())
HEALTH = {"interval_s": 30.0, "timeout_s": 0.5, "silence_s": 0.4}
QUICK = {"health": HEALTH, "scrape": {"interval_s": 0.05, "timeout_s": 0.3}}
PATIENT = QUICK | {"health": HEALTH | {"failures": 100}}
"""Suspects are never taken out."""


def suspects(router: Routed) -> set[str]:
    return {replica.id for replica in router.parts.fleet.trust.suspects}


def is_well(router: Routed, index: int) -> bool:
    return router.parts.fleet.replicas[index].health.healthy


async def all_are_scraped(fleet: list[Backend]) -> None:
    await eventually(lambda: all(backend.scrapes > 1 for backend in fleet))


async def served_by(router: Routed, count: int) -> list[str]:
    answers = [await router.post(chat(stream=True)) for _ in range(count)]
    assert {(status, got) for status, got, _ in answers} == {(200, TEXT)}
    return [headers["x-steersman-replica"] for _, _, headers in answers]


@pytest.mark.parametrize("streaming", [True, False])
async def test_what_waits_on_a_frozen_replica_is_answered_elsewhere(streaming: bool) -> None:
    good = GOOD if streaming else WHOLE
    async with rig(good, good, good, **QUICK) as (router, fleet):
        await all_are_scraped(fleet)
        fleet[0].frozen = True
        asked = [asyncio.create_task(router.post(chat(stream=streaming))) for _ in range(6)]
        answers = await asyncio.gather(*asked)
        assert {status for status, _, _ in answers} == {200}
        assert {headers["x-steersman-replica"] for _, _, headers in answers} == {"b1", "b2"}
        assert not is_well(router, 0)
        assert not router.parts.fleet.state[:, 17:22].any(), "the account is balanced"
        assert not any(replica.waiting for replica in router.parts.fleet.replicas)
        assert await router.metric('steersman_retries_total{reason="backend_silent"}') == 2.0


async def test_it_gets_no_request_once_it_is_suspected_and_all_again_when_it_thaws() -> None:
    async with rig(GOOD, GOOD, **PATIENT) as (router, fleet):
        await all_are_scraped(fleet)
        fleet[0].frozen = True
        await eventually(lambda: suspects(router) == {"b0"})
        assert await served_by(router, 4) == ["b1"] * 4
        assert is_well(router, 0), "suspected, not yet out"
        fleet[0].frozen = False
        await eventually(lambda: not suspects(router))
        assert set(await served_by(router, 4)) == {"b0", "b1"}


async def test_a_replica_that_only_answers_its_pages_late_is_not_silent() -> None:
    """As an overloaded server: its checks time out, and its streams go on."""
    endless = stream([TEXT] * 200, delay_s=0.02)
    async with rig(endless, GOOD, **QUICK) as (router, fleet):
        await all_are_scraped(fleet)
        asking = asyncio.create_task(router.post(chat(stream=True)))
        await eventually(lambda: len(fleet[0].received) == 1)
        fleet[0].pages_frozen = True
        for _ in range(20):
            await asyncio.sleep(0.05)
            assert not suspects(router)
            assert is_well(router, 0)
        asking.cancel()


async def test_when_most_fall_silent_they_are_not_taken_out() -> None:
    async with rig(GOOD, GOOD, GOOD, GOOD, **QUICK) as (router, fleet):
        await all_are_scraped(fleet)
        for backend in fleet:
            backend.frozen = True
        await asyncio.sleep(1.5)
        assert not suspects(router)
        assert sum(is_well(router, i) for i in range(4)) >= 3, "one may be noticed before the others"


async def test_a_suspect_that_alone_can_take_a_request_gets_it() -> None:
    async with rig(GOOD, GOOD, **PATIENT) as (router, fleet):
        await all_are_scraped(fleet)
        fleet[0].frozen = True
        await eventually(lambda: suspects(router) == {"b0"})
        router.parts.fleet.replicas[1].resting_until_s = router.parts.clock() + 60.0
        asking = asyncio.create_task(router.post(chat(stream=True)))
        await eventually(lambda: bool(router.parts.fleet.replicas[0].waiting))
        fleet[0].frozen = False
        status, _, headers = await asking
        assert (status, headers["x-steersman-replica"]) == (200, "b0")


class Rig:
    """The router's parts without any I/O, on a clock of the test's."""

    def __init__(self, count: int, **health: Any) -> None:
        self.now_s = 100.0
        listed = [{"id": f"b{i}", "url": f"http://127.0.0.1:{i + 1}"} for i in range(count)]
        settings = settings_for([], backends=listed, health={"silence_s": 1.0} | health)
        self.parts: Parts = build_parts(settings, clock=lambda: self.now_s)
        for replica in self.parts.fleet.replicas:
            replica.pulse.heard(self.now_s)

    async def suspected(self) -> set[str]:
        await self.parts.silence.step(self.now_s)
        await self.parts.silence.close()
        return {replica.id for replica in self.parts.fleet.trust.suspects}


async def test_a_stall_of_our_own_makes_nobody_a_suspect() -> None:
    rig = Rig(4)
    for replica in rig.parts.fleet.replicas:
        replica.pulse.asked(rig.now_s)
    rig.now_s += 30.0
    assert await rig.suspected() == set()


@pytest.mark.parametrize(("silent", "expected"), [(1, 1), (2, 2), (3, 0), (4, 0)])
async def test_while_half_of_the_others_answer(silent: int, expected: int) -> None:
    rig = Rig(4)
    for i, replica in enumerate(rig.parts.fleet.replicas):
        replica.pulse.asked(rig.now_s)
        if i >= silent:
            replica.pulse.heard(rig.now_s + 1.5)
    rig.now_s += 2.0
    assert len(await rig.suspected()) == expected


async def test_zero_is_never() -> None:
    rig = Rig(3, silence_s=0.0)
    rig.parts.fleet.replicas[0].pulse.asked(rig.now_s)
    rig.now_s += 5.0
    for replica in rig.parts.fleet.replicas[1:]:
        replica.pulse.heard(rig.now_s)
    assert await rig.suspected() == set()


@given(st.lists(st.tuples(st.sampled_from(["asked", "heard"]), st.floats(0.0, 10.0))))
def test_silence_counts_from_the_first_question_without_an_answer(
    happened: list[tuple[str, float]],
) -> None:
    pulse, now_s, first_s = Pulse(), 0.0, None
    for kind, pause_s in happened:
        now_s += pause_s
        if kind == "asked":
            pulse.asked(now_s)
            first_s = now_s if first_s is None else first_s
        else:
            pulse.heard(now_s)
            first_s = None
        expected_s = 0.0 if first_s is None else now_s + 1.0 - first_s
        assert pulse.silence_s(now_s + 1.0) == pytest.approx(expected_s)
