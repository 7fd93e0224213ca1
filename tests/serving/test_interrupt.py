"""Ending a task from outside, for a reason."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from steersman.serving.deadlines import Deadlines
from steersman.serving.interrupt import Interrupt, Reason


async def interrupted(interrupt: Interrupt, wait_s: float = 5.0) -> Reason | None:
    try:
        await asyncio.sleep(wait_s)
    except asyncio.CancelledError:
        return interrupt.take()
    return None


async def test_it_says_why_and_the_task_goes_on() -> None:
    interrupt = Interrupt()
    asyncio.get_running_loop().call_later(0.01, interrupt.fire, Reason.CLIENT_GONE)
    assert await interrupted(interrupt) is Reason.CLIENT_GONE
    await asyncio.sleep(0)
    task = asyncio.current_task()
    assert task is not None
    assert task.cancelling() == 0


async def test_a_deadline_ends_the_task() -> None:
    interrupt = Interrupt()
    interrupt.expect(0.02, Reason.BACKEND_TIMEOUT)
    assert await interrupted(interrupt) is Reason.BACKEND_TIMEOUT


async def test_progress_moves_the_deadline_either_way() -> None:
    interrupt = Interrupt()
    interrupt.expect(0.05, Reason.BACKEND_TIMEOUT)
    for _ in range(5):
        await asyncio.sleep(0.02)
        interrupt.expect(0.05, Reason.CLIENT_STALLED)
    interrupt.expect(60.0, Reason.BACKEND_TIMEOUT)
    assert await interrupted(interrupt, 0.1) is None
    interrupt.expect(0.02, Reason.CLIENT_STALLED)
    assert await interrupted(interrupt) is Reason.CLIENT_STALLED


async def test_disarmed_it_does_nothing() -> None:
    interrupt = Interrupt()
    interrupt.expect(0.01, Reason.BACKEND_TIMEOUT)
    interrupt.disarm()
    interrupt.fire(Reason.CLIENT_GONE)
    assert await interrupted(interrupt, 0.05) is None


async def test_a_cancellation_by_others_is_not_ours() -> None:
    async def victim() -> None:
        interrupt = Interrupt()
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            assert interrupt.take() is None
            raise

    task = asyncio.create_task(victim())
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_many_are_watched_by_one_timer_and_forgotten() -> None:
    deadlines = Deadlines()

    async def waits(within_s: float, moves: int) -> Reason | None:
        interrupt = Interrupt(deadlines)
        interrupt.expect(within_s, Reason.BACKEND_TIMEOUT)
        try:
            for _ in range(moves):
                await asyncio.sleep(within_s / 4)
                interrupt.since_s = interrupt.loop.time()
            await asyncio.sleep(5.0)
        except asyncio.CancelledError:
            return interrupt.take()
        finally:
            interrupt.disarm()
        return None

    began_s = asyncio.get_running_loop().time()
    late = [asyncio.create_task(waits(0.2 + 0.001 * i, i % 8)) for i in range(40)]
    patient = asyncio.create_task(waits(60.0, 0))
    assert await asyncio.gather(*late) == [Reason.BACKEND_TIMEOUT] * 40
    assert asyncio.get_running_loop().time() - began_s < 5.0
    assert len(deadlines) == 1
    patient.cancel()
    assert await patient is None
    assert len(deadlines) == 0


async def test_one_that_fails_keeps_nobody_else_from_being_told() -> None:
    class Failing:
        def due_s(self) -> float:
            return 0.0

        def late(self) -> None:
            raise RuntimeError

    deadlines, failures = Deadlines(), list[dict[str, Any]]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))
    for _ in range(3):
        deadlines.watch(Failing(), 0.0)
    interrupt = Interrupt(deadlines)
    interrupt.expect(0.02, Reason.BACKEND_TIMEOUT)
    assert await interrupted(interrupt) is Reason.BACKEND_TIMEOUT
    while len(deadlines):
        await asyncio.sleep(0.01)
    assert len(failures) == 3


async def test_one_that_was_late_is_watched_again() -> None:
    interrupt = Interrupt(Deadlines())
    for _ in range(2):
        interrupt.expect(0.02, Reason.BACKEND_TIMEOUT)
        assert await interrupted(interrupt) is Reason.BACKEND_TIMEOUT
    interrupt.disarm()
