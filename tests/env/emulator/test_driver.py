from __future__ import annotations

import asyncio

import pytest

from steersman.env.emulator.driver import EngineDriver
from steersman.env.emulator.settings import EmulatorSettings, Faults
from steersman.env.engine_live import LiveEngine, TokenEvent
from steersman.env.profiles import load_profile

PROFILE = load_profile("a100-llama-3.1-8b")


def driver(**settings: object) -> EngineDriver:
    made = EmulatorSettings.model_validate({"profile": PROFILE.name, "speed": 50.0, **settings})
    return EngineDriver(PROFILE, "m", made)


async def test_tokens_come_when_the_engine_says() -> None:
    driven, loop = driver(speed=1.0), asyncio.get_running_loop()
    alone = LiveEngine(PROFILE)
    alone.submit(0.0, 500, 3)
    said_s: list[float] = []
    while alone.next_event_s < float("inf"):
        said_s += [event.at_s for event in alone.advance(alone.next_event_s)]
    begun = loop.time()
    stream = driven.submit(500, 3, (), 0, interval=1)
    seen_s = []
    while not stream.complete:
        await stream.take()
        seen_s.append(loop.time() - begun)
    assert len(seen_s) == len(said_s) == 3
    # Never early; late by no more than a busy machine is.
    assert all(said <= seen + 1e-6 < said + 0.5 for said, seen in zip(said_s, seen_s, strict=True))


async def test_a_taker_that_stands_still_holds_up_nobody() -> None:
    driven = driver()
    stalled = driven.submit(100, 50, (), 0, interval=1)
    other = driven.submit(100, 50, (), 0, interval=1)
    assert await asyncio.wait_for(other.wait_complete(), 10.0)
    assert stalled.produced >= 49
    assert (await stalled.take())[1] >= 49


async def test_dropping_a_stream_cancels_it_once() -> None:
    driven = driver()
    stream = driven.submit(100, 100_000, (), 0, interval=1)
    await stream.take()
    driven.drop(stream)
    driven.drop(stream)
    assert driven.page.finished["abort"] == 1
    produced = stream.produced
    await asyncio.sleep(0.05)
    assert stream.produced == produced


async def test_a_frozen_engine_computes_nothing_until_it_thaws() -> None:
    driven = driver()
    stream = driven.submit(100, 100_000, (), 0, interval=1)
    await stream.take()
    driven.apply(Faults(freeze_s=0.2))
    produced = stream.produced
    await asyncio.sleep(0.1)
    assert stream.produced == produced
    await driven.thawed()
    await stream.take()
    driven.close()


async def test_healing_ends_a_freeze() -> None:
    driven = driver()
    driven.apply(Faults(freeze_s=3600))
    thawed = asyncio.create_task(driven.thawed())
    await asyncio.sleep(0)
    assert not thawed.done()
    driven.apply(Faults())
    await asyncio.wait_for(thawed, 1.0)


async def test_an_engine_that_breaks_ends_every_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = driver()
    stream = driven.submit(100, 1000, (), 0, interval=1)
    await stream.take()

    def broken(_self: LiveEngine, _now_s: float) -> list[TokenEvent]:
        raise ArithmeticError("a bug")

    monkeypatch.setattr(LiveEngine, "advance", broken)
    complaints: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: complaints.append(context))
    assert await asyncio.wait_for(stream.wait_complete(), 5.0) is False
    assert isinstance(driven.error, ArithmeticError)
    assert len(complaints) == 1
    late = driven.submit(100, 10, (), 0, interval=1)
    assert await asyncio.wait_for(late.wait_complete(), 5.0) is False
    driven.drop(stream)
