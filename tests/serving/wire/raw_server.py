"""A server that says exactly these bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from steersman.serving.wire.connections import Connections, Origin
from steersman.serving.wire.response import Response

Script = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
REQUEST = b"GET / HTTP/1.1\r\nhost: a\r\n\r\n"


class RawServer:
    """Runs a script for every connection."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self.connections = 0
        self.port = 0
        self._tasks: set[asyncio.Task[None]] = set()

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            await self._script(reader, writer)
        writer.close()

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@contextlib.asynccontextmanager
async def raw_server(script: Script) -> AsyncIterator[RawServer]:
    state = RawServer(script)
    server = await asyncio.start_server(state.connected, "127.0.0.1", 0)
    state.port = server.sockets[0].getsockname()[1]
    try:
        yield state
    finally:
        server.close()
        await state.stop()


@contextlib.asynccontextmanager
async def asking(
    script: Script, *, keepalive_s: float = 4.0, per_origin: int = 0
) -> AsyncIterator[tuple[RawServer, Connections, Origin]]:
    """A server, and connections to it."""
    async with (
        raw_server(script) as server,
        Connections(keepalive_s=keepalive_s, per_origin=per_origin) as connections,
    ):
        yield server, connections, Origin("127.0.0.1", server.port, None, "127.0.0.1")


async def ask(connections: Connections, origin: Origin) -> Response:
    """The answer, once its headers are here."""
    connection = await connections.get(origin, 2.0)
    response = connection.ask(REQUEST, b"")
    await response.headers()
    return response


def says(*pieces: bytes, then_close: bool = False) -> Script:
    """Answers every request with these pieces."""

    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            await reader.readuntil(b"\r\n\r\n")
            for piece in pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if then_close:
                return

    return script
