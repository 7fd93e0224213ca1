"""Bytes to the router and from it, as no HTTP client would send them."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass

from tests.serving.harness import Routed


@dataclass
class Line:
    """An open connection."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    async def answer(self) -> tuple[int, bytes]:
        """Status and body of the next answer, which has a length."""
        head = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), 5.0)
        lines = head.lower().split(b"\r\n")
        length = next((int(ln.split(b":")[1]) for ln in lines if ln.startswith(b"content-length")), 0)
        return int(head.split(b" ")[1]), await self.reader.readexactly(length)

    async def rest(self, within_s: float = 5.0) -> bytes:
        """All that comes until the router hangs up."""
        return await asyncio.wait_for(self.reader.read(), within_s)

    async def said(self, quiet_s: float = 0.05) -> bytes:
        """All that comes until the router hangs up, or says nothing for a moment."""
        heard = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while piece := await asyncio.wait_for(self.reader.read(65_536), quiet_s):
                heard += piece
        return heard


@contextlib.asynccontextmanager
async def line(router: Routed) -> AsyncIterator[Line]:
    """A connection to the router."""
    host, port = router.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Line(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def post(*headers: bytes, body: bytes = b"", path: bytes = b"/v1/chat/completions") -> bytes:
    """A request with exactly these headers, beside `Host`."""
    head = b"".join(header + b"\r\n" for header in (b"host: x", *headers))
    return b"POST " + path + b" HTTP/1.1\r\n" + head + b"\r\n" + body


def sized(body: bytes, *headers: bytes) -> bytes:
    """A request as it should be."""
    return post(b"content-length: %d" % len(body), *headers, body=body)
