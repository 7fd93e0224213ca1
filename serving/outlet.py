"""A client's connection as the endpoints see it, where ASGI is too slow or has no word for it.

ASGI sends the head and every piece of an answer through a coroutine and in a packet of its own, and
tells that a client has gone only to somebody who waits for it: a task more for each request, and two
wake-ups for each token. The router's server (`connection.py`) puts an outlet into the scope of every
request, and what is passed on from a replica goes through that; `send` stays for everything else.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import cast

from starlette.types import Scope
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

EXTENSION = "steersman.outlet"
"""Its name among the extensions of a scope."""


class Outlet:
    """Of one request that is no HEAD; lives until its answer has ended. What is sent to a client that is
    gone is dropped."""

    __slots__ = ("_chunked", "_cycle", "_flow", "_head", "_on_gone", "_transport")

    def __init__(
        self, cycle: RequestResponseCycle, transport: asyncio.Transport, flow: FlowControl
    ) -> None:
        self._cycle = cycle
        self._transport = transport
        self._flow = flow
        self._head = b""
        self._chunked = False
        self._on_gone: Callable[[], None] | None = None

    def take_body(self) -> bytes | None:
        """The body of the request, if all of it is here; once, and in place of `receive`."""
        cycle = self._cycle
        if cycle.more_body or cycle.disconnected:
            return None
        body, cycle.body = bytes(cycle.body), bytearray()
        cycle.message_event.clear()
        return body

    @property
    def is_full(self) -> bool:
        """Whether the client has to take something before it should be sent more."""
        return self._flow.write_paused

    async def drained(self) -> None:
        """Return once it is not `is_full`, or the client is gone."""
        await self._flow.drain()

    def start(self, status: int, headers: Sequence[tuple[bytes, bytes]]) -> None:
        """The answer begins. Its head is sent with the first piece, or with its end.

        Args:
            headers: names in lower case; `content-length` if that is known, and no other framing.

        Raises:
            RuntimeError: it has begun before, or a header would break a line.
        """
        cycle = self._cycle
        if cycle.disconnected:
            return
        if cycle.response_started:
            raise RuntimeError("the answer has begun")
        lines = [*map(b": ".join, cycle.default_headers), *map(b": ".join, headers)]
        if b"connection: close" in lines:  # the server is stopping
            cycle.keep_alive = False
        elif not cycle.keep_alive:
            lines.append(b"connection: close")
        # HTTP/1.0 has no chunks: there the end of the connection is that of the answer.
        is_framed = any(name == b"content-length" for name, _ in headers)
        self._chunked = not is_framed and cycle.scope["http_version"] != "1.0"
        if self._chunked:
            lines.append(b"transfer-encoding: chunked")
        head = b"\r\n".join(lines)
        if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1 or b"\0" in head:
            raise RuntimeError("a header has a line break in it")
        first = STATUS_LINE.get(status) or b"HTTP/1.1 %d \r\n" % status
        self._head = b"%b%b\r\n\r\n" % (first, head)
        cycle.response_started = True
        cycle.waiting_for_100_continue = False

    def write(self, piece: bytes) -> bool:
        """Send a piece of the answer, which is not empty; whether more may follow at once."""
        if not self._cycle.disconnected:
            if self._chunked:
                piece = b"%b%x\r\n%b\r\n" % (self._head, len(piece), piece)
            elif self._head:
                piece = self._head + piece
            self._head = b""
            self._transport.write(piece)
        return not self._flow.write_paused

    def end(self, piece: bytes = b"") -> None:
        """Send the last piece, which may be empty. The connection is ready for the next request."""
        cycle = self._cycle
        if cycle.disconnected or cycle.response_complete:
            return
        if self._chunked:
            piece = b"%x\r\n%b\r\n0\r\n\r\n" % (len(piece), piece) if piece else b"0\r\n\r\n"
        self._transport.write(self._head + piece)
        self._head = b""
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            self._transport.close()
        cycle.on_response()

    def abort(self) -> None:
        """Give the client up: what it did not take in time, it does not get any more."""
        self._cycle.disconnected = True
        self._transport.abort()

    def watch(self, on_gone: Callable[[], None]) -> None:
        """From now on until `unwatch`, `on_gone` is called once if the client goes away, or has gone. To
        be asked when the request has been read."""
        self._flow.resume_reading()  # or nobody would notice
        self._on_gone = on_gone
        if self._cycle.disconnected:
            self.tell_gone()

    def unwatch(self) -> None:
        """Nobody is to be told any more."""
        self._on_gone = None

    def tell_gone(self) -> None:
        """For the connection: nobody is there any more."""
        if not self._cycle.response_complete:
            self._cycle.disconnected = True
        on_gone, self._on_gone = self._on_gone, None
        if on_gone is not None:
            on_gone()


def outlet_of(scope: Scope) -> Outlet:
    """The outlet of a request."""
    return cast("Outlet", scope["extensions"][EXTENSION])
