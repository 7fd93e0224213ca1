"""Answers arrive whole however they are framed and cut, and what is none is told as that."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.serving.wire.connection import HIGH_WATER_BYTES, MOST_HEAD_BYTES, Connection
from steersman.serving.wire.errors import AnswerBroken, ConnectionClosed, NotHttp, WireError
from tests.serving.wire.raw_server import ask, asking, says

CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: Text/Event-Stream; charset=utf-8\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n5\r\ndata:\r\n3\r\n a\n\r\n0\r\nx-trailer: 1\r\n\r\n"
)
SIZED = b"HTTP/1.1 201 Made\r\nContent-Length: 8\r\n\r\ndata: a\n"
CLOSED = b"HTTP/1.0 200 OK\r\n\r\ndata: a\n"
EARLY = b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n"


async def read(*pieces: bytes, then_close: bool = True) -> tuple[int, bytes, list[tuple[bytes, bytes]]]:
    async with asking(says(*pieces, then_close=then_close)) as (_, connections, origin):
        response = await ask(connections, origin)
        return response.status, await response.read_up_to(2**30), response.raw_headers


@pytest.mark.parametrize(("answer", "status"), [(CHUNKED, 200), (SIZED, 201), (CLOSED, 200)])
async def test_all_framings_give_the_same_body(answer: bytes, status: int) -> None:
    assert (await read(answer))[:2] == (status, b"data: a\n")


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, len(EARLY + CHUNKED) - 1), unique=True))
def test_an_answer_may_be_cut_anywhere(cuts: list[int]) -> None:
    answer = EARLY + CHUNKED
    places = [0, *sorted(cuts), len(answer)]
    pieces = [answer[start:end] for start, end in itertools.pairwise(places)]
    status, body, headers = asyncio.run(read(*pieces, then_close=False))
    assert (status, body) == (200, b"data: a\n")
    assert [name for name, _ in headers] == [b"content-type", b"transfer-encoding"]


async def test_headers_are_told_in_lower_case_and_the_type_without_parameters() -> None:
    async with asking(says(CHUNKED)) as (_, connections, origin):
        response = await ask(connections, origin)
        assert response.content_type == "text/event-stream"
        assert response.header(b"transfer-encoding") == "chunked"
        assert response.header(b"retry-after") == ""


async def test_an_answer_without_a_body() -> None:
    assert (await read(b"HTTP/1.1 204 No Content\r\n\r\n"))[:2] == (204, b"")


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", ConnectionClosed),
        (b"HTTP/1.1 200", ConnectionClosed),
        (b"SSH-2.0-OpenSSH_9.2\r\n", NotHttp),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", WireError),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\ncontent-length: 4\r\n\r\nabcd", NotHttp),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\ntransfer-encoding: chunked\r\n\r\n", NotHttp),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * (MOST_HEAD_BYTES + 10) + b"\r\n\r\n", NotHttp),
    ],
)
async def test_what_is_no_answer_is_told_as_that(answer: bytes, error: type[WireError]) -> None:
    with pytest.raises(error):
        await read(answer)


@pytest.mark.parametrize("answer", [CHUNKED[:-21], SIZED[:-2], CHUNKED[:-21] + b"zz\r\n"])
async def test_a_break_is_told_after_what_came_before_it(answer: bytes) -> None:
    async with asking(says(answer, then_close=True)) as (_, connections, origin):
        response = await ask(connections, origin)
        assert (await response.read_some()).startswith(b"data:")
        with pytest.raises(AnswerBroken):
            await response.read_up_to(2**30)
        assert not response.at_end


async def test_a_replica_waits_while_nobody_takes_its_answer() -> None:
    sent = [0]

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while sent[0] < 400:
            writer.write(b"x" * 2**16)
            await writer.drain()
            sent[0] += 1

    async with asking(flood) as (_, connections, origin):
        response = await ask(connections, origin)
        for _ in range(20):
            before = sent[0]
            await asyncio.sleep(0.02)
            if before == sent[0] > 0:
                break
        assert 0 < sent[0] < 400, "it was not made to wait"
        assert response.buffered < 4 * HIGH_WATER_BYTES
        size = 0
        while piece := await response.read_some():
            size += len(piece)
        assert size == 400 * 2**16


async def test_closing_an_answer_early_ends_the_replicas_work() -> None:
    gone = asyncio.Event()

    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        try:
            await reader.read()
        finally:
            gone.set()

    async with asking(endless) as (_, connections, origin):
        response = await ask(connections, origin)
        response.close()
        await asyncio.wait_for(gone.wait(), 5.0)


async def test_pieces_pour_until_the_sink_has_had_enough_and_the_end_is_left_to_read() -> None:
    head = CHUNKED.partition(b"5\r\n")[0]
    pieces = [b"1\r\n%d\r\n" % i for i in range(6)]
    heard: list[bytes] = []

    def sink(piece: bytes) -> bool:
        heard.append(piece)
        return len(heard) < 3

    async with asking(says(head, *pieces, b"0\r\n\r\n")) as (_, connections, origin):
        response = await ask(connections, origin)
        while not response.at_end:
            await response.pour(sink)
            heard.append(await response.read_some())
    assert b"".join(heard) == b"012345"
    assert await response.read_some() == b""


async def test_what_a_sink_raises_is_raised_where_it_pours() -> None:
    def sink(piece: bytes) -> bool:
        raise LookupError(piece)

    head = CHUNKED.partition(b"5\r\n")[0]
    gate = asyncio.Event()

    async def server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(head)
        await gate.wait()
        writer.write(b"1\r\na\r\n")

    async with asking(server) as (_, connections, origin):
        response = await ask(connections, origin)
        asyncio.get_running_loop().call_soon(gate.set)
        with pytest.raises(LookupError):
            await response.pour(sink)
        response.close()


async def test_what_is_poured_away_at_once_never_makes_the_replica_wait() -> None:
    class Taps(asyncio.Transport):
        def write(self, data: bytes | bytearray | memoryview) -> None:
            """Goes nowhere."""

        def pause_reading(self) -> None:
            told.append("pause")

        def resume_reading(self) -> None:
            told.append("resume")

    told: list[str] = []
    connection = Connection(asyncio.get_running_loop(), lambda _: None)
    connection.connection_made(Taps())
    response = connection.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
    connection.data_received(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (3 * HIGH_WATER_BYTES))
    poured: list[int] = []

    def sink(piece: bytes) -> bool:
        poured.append(len(piece))
        return True

    pouring = asyncio.create_task(response.pour(sink))
    await asyncio.sleep(0)
    connection.data_received(bytes(HIGH_WATER_BYTES + 1))
    assert poured == [HIGH_WATER_BYTES + 1]
    assert told == []
    pouring.cancel()
    await asyncio.wait([pouring])
    connection.data_received(bytes(HIGH_WATER_BYTES + 1))
    assert told == ["pause"]
    assert len(response.take()) == HIGH_WATER_BYTES + 1
    assert told == ["pause", "resume"]
