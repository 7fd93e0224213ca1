from __future__ import annotations

import asyncio

import pytest

from steersman.env.emulator.token_stream import Ending, TokenStream


async def takes(stream: TokenStream) -> list[tuple[int, int]]:
    got: list[tuple[int, int]] = []
    while not stream.complete or not got or sum(got[-1]) < stream.total:
        got.append(await stream.take())
        if got[-1][1] == 0:
            break
    return got


async def give(stream: TokenStream, count: int) -> None:
    for _ in range(count):
        stream.give()
        await asyncio.sleep(0)
        await asyncio.sleep(0)


async def test_every_token_once_and_in_order() -> None:
    stream = TokenStream(4, 0.0)
    taking = asyncio.create_task(takes(stream))
    await asyncio.sleep(0)
    await give(stream, 4)
    assert await taking == [(0, 1), (1, 1), (2, 1), (3, 1)]


async def test_a_slow_taker_gets_several_at_once() -> None:
    stream = TokenStream(4, 0.0)
    for _ in range(3):
        stream.give()
    assert await stream.take() == (0, 3)


async def test_an_interval_lets_the_first_and_the_last_through() -> None:
    stream = TokenStream(8, 0.0, interval=3)
    taking = asyncio.create_task(takes(stream))
    await asyncio.sleep(0)
    await give(stream, 8)
    assert await taking == [(0, 1), (1, 3), (4, 3), (7, 1)]


async def test_a_whole_answer_wakes_its_taker_once() -> None:
    stream = TokenStream(5, 0.0, interval=0)
    waiting = asyncio.create_task(stream.wait_complete())
    await asyncio.sleep(0)
    await give(stream, 4)
    assert not waiting.done()
    await give(stream, 1)
    assert await waiting


@pytest.mark.parametrize("interval", [0, 1, 4])
async def test_an_early_end_wakes_the_taker(interval: int) -> None:
    stream = TokenStream(5, 0.0, interval=interval)
    waiting = asyncio.create_task(stream.wait_complete())
    await asyncio.sleep(0)
    stream.end(Ending.CLIENT_GONE)
    assert await waiting is False
    assert (await stream.take())[1] == 0


async def test_giving_to_a_cancelled_taker_is_harmless() -> None:
    stream = TokenStream(2, 0.0)
    taking = asyncio.create_task(stream.take())
    await asyncio.sleep(0)
    taking.cancel()
    await asyncio.sleep(0)
    stream.give()
    assert await stream.take() == (0, 1)
