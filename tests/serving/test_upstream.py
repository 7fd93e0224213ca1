"""Pages of replicas are fetched within bounds of bytes and time."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from steersman.serving import upstream as module
from steersman.serving.config import LimitSettings, TimeoutSettings
from steersman.serving.parts import build_parts
from steersman.serving.replica import Replica
from steersman.serving.upstream import Upstream, request_head
from steersman.traces.errors import BackendError
from tests.serving.harness import settings_for

Answer = Callable[[asyncio.StreamWriter], Awaitable[None]]
HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@contextlib.asynccontextmanager
async def asking(answer: Answer) -> AsyncIterator[tuple[Upstream, Replica, list[int]]]:
    """A client, a replica that answers so, and the bytes it could send."""
    sent = [0]
    tasks: set[asyncio.Task[None]] = set()

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(HEAD)
            while True:
                await answer(writer)
                sent[0] += 1
        writer.transport.abort()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    listed = [{"id": "a", "url": f"http://127.0.0.1:{port}"}]
    parts = build_parts(settings_for([], backends=listed))
    try:
        async with Upstream(TimeoutSettings(), LimitSettings()) as upstream:
            yield upstream, parts.fleet.replicas[0], sent
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks)


async def test_an_endless_page_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAGE_BYTES", 2**20)

    async def flood(writer: asyncio.StreamWriter) -> None:
        writer.write(b"10000\r\n" + b"x" * 2**16 + b"\r\n")
        await writer.drain()

    async with asking(flood) as (upstream, replica, sent):
        with pytest.raises(BackendError, match="more than 1048576 bytes"):
            await upstream.get(replica, "/metrics", timeout_s=30.0)
        assert sent[0] < 400, "nor was it read on"


async def test_a_page_that_trickles_is_cut_off() -> None:
    async def trickle(writer: asyncio.StreamWriter) -> None:
        writer.write(b"1\r\nx\r\n")
        await writer.drain()
        await asyncio.sleep(0.01)

    async with asking(trickle) as (upstream, replica, _):
        with pytest.raises(BackendError, match="no answer in time"):
            await upstream.get(replica, "/metrics", timeout_s=0.2)


@pytest.mark.parametrize("value", [b"a\r\nx-evil: 1", b"a\nb", b"a\rb", b"a\0b"])
def test_no_header_can_become_two(value: bytes) -> None:
    with pytest.raises(ValueError, match="line break"):
        request_head(b"POST", b"/v1/chat/completions", b"host", [(b"x-a", value)])


def test_a_request_is_written_as_it_is_given() -> None:
    head = request_head(b"POST", b"/p?q=1", b"h:1", [(b"x-a", "ü".encode()), (b"x-b", b"\xff")])
    assert head == b"POST /p?q=1 HTTP/1.1\r\nhost: h:1\r\nx-a: \xc3\xbc\r\nx-b: \xff\r\n\r\n"
