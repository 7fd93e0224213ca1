"""Connections are kept for the next request, unless something about them is not right."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest

from steersman.serving.wire.connections import Connections, Origin
from steersman.serving.wire.errors import CannotConnect, CannotResolve
from tests.serving.wire.raw_server import ask, asking, says

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


@pytest.mark.parametrize(
    ("answer", "opened"),
    [
        (OK, 1),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok", 2),
        (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", 2),
        (OK + OK, 2),  # a second answer, to no request of ours, must not become the next one's
        (OK + b"junk", 2),
    ],
)
async def test_a_connection_is_kept_only_if_its_answer_left_it_clean(answer: bytes, opened: int) -> None:
    async with asking(says(answer)) as (server, connections, origin):
        for _ in range(2):
            response = await ask(connections, origin)
            assert await response.read_up_to(100) == b"ok"
            await asyncio.sleep(0.01)
        assert server.connections == opened


async def test_bytes_that_nobody_asked_for_end_an_idle_connection() -> None:
    async def talkative(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        await asyncio.sleep(0.05)
        writer.write(OK)
        await reader.read()

    async with asking(talkative) as (server, connections, origin):
        await ask(connections, origin)
        await asyncio.sleep(0.15)
        await ask(connections, origin)
        assert server.connections == 2


async def test_a_connection_that_the_replica_closed_is_not_used_again() -> None:
    async with asking(says(OK, then_close=True)) as (server, connections, origin):
        await ask(connections, origin)
        await asyncio.sleep(0.05)
        assert await (await ask(connections, origin)).read_up_to(100) == b"ok"
        assert server.connections == 2


async def test_idle_connections_are_closed_in_time() -> None:
    ended = asyncio.Event()

    async def watching(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(OK)
        try:
            await reader.read()
        finally:
            ended.set()

    async with asking(watching, keepalive_s=0.1) as (_, connections, origin):
        await ask(connections, origin)
        await asyncio.wait_for(ended.wait(), 5.0)


async def test_a_limit_makes_requests_wait_for_a_connection() -> None:
    go = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            await go.wait()
            writer.write(OK)

    async with asking(slow, per_origin=1) as (server, connections, origin):
        first = asyncio.ensure_future(ask(connections, origin))
        await asyncio.sleep(0.02)
        with pytest.raises(TimeoutError):
            await connections.get(origin, 0.05)
        second = asyncio.ensure_future(ask(connections, origin))
        await asyncio.sleep(0.02)
        go.set()
        await first
        await second
        assert server.connections == 1


async def test_a_request_that_is_given_up_frees_its_place() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with asking(silent, per_origin=1) as (server, connections, origin):
        for _ in range(3):
            connection = await connections.get(origin, 2.0)
            response = connection.ask(b"GET / HTTP/1.1\r\n\r\n", b"")
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.02):
                    await response.headers()
            response.close()
            await asyncio.sleep(0.01)
        assert server.connections == 3


async def test_nobody_is_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with Connections(keepalive_s=4.0, per_origin=1) as connections:
        for _ in range(2):  # the place is freed
            with pytest.raises(CannotConnect, match=r"cannot connect \(Connection refused\)"):
                await connections.get(Origin("127.0.0.1", port, None, ""), 2.0)


async def test_a_name_that_is_none() -> None:
    async with Connections(keepalive_s=4.0, per_origin=0) as connections:
        with pytest.raises(CannotResolve, match="cannot be resolved"):
            await connections.get(Origin("no.such.name.invalid", 80, None, ""), 5.0)


async def test_a_name_is_resolved() -> None:
    async with asking(says(OK)) as (server, connections, _):
        origin = Origin("localhost", server.port, None, "localhost")
        assert await (await ask(connections, origin)).read_up_to(100) == b"ok"


async def test_a_server_without_tls_is_told_as_that() -> None:
    async with asking(says(OK)) as (server, connections, _):
        origin = Origin("127.0.0.1", server.port, ssl.create_default_context(), "localhost")
        with pytest.raises((CannotConnect, TimeoutError)) as raised:
            await connections.get(origin, 0.5)
        assert "127.0.0.1" not in str(raised.value)
