"""One connection to a replica, and one request on it at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

import httptools

from steersman.serving.wire.errors import AnswerBroken, ConnectionClosed, NotHttp, WireError
from steersman.serving.wire.response import Response

HIGH_WATER_BYTES = 2**18
"""Of an answer that nobody takes, before the replica is made to wait."""
MOST_HEAD_BYTES = 2**16
"""Of an answer's status line and headers."""


class Connection(asyncio.Protocol):
    """From `connection_made` to `connection_lost`.

    Args:
        loop: where it lives.
        ended: told when a request is over; the connection can carry another if it is `reusable`.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, ended: Callable[[Connection], None]) -> None:
        self._loop = loop
        self._ended = ended
        self._parser = httptools.HttpResponseParser(self)
        self._response: Response | None = None
        self._head_bytes = self._unfinished_bytes = 0
        self._interim = False
        self._delimited = False
        self._paused = False
        self._reusable = True
        self.idle_since_s = 0.0

    @property
    def reusable(self) -> bool:
        """Whether it may carry another request."""
        transport = self._transport
        # What the replica did not wait for would be taken for the next request.
        return self._reusable and not transport.is_closing() and not transport.get_write_buffer_size()

    def ask(self, head: bytes, body: bytes) -> Response:
        """Send a request. The connection is free again once the answer is `complete`."""
        response = Response(self._loop, self._resume, self.abort)
        self._response = response
        self._head_bytes = self._unfinished_bytes = 0
        self._interim = self._delimited = False
        if len(body) < HIGH_WATER_BYTES:
            self._transport.write(head + body)
        else:
            self._transport.writelines((head, body))
        return response

    def abort(self) -> None:
        """End it now."""
        self._reusable = False
        self._transport.abort()

    # What the event loop tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own class is none of it

    def data_received(self, data: bytes) -> None:
        """Bytes came."""
        response = self._response
        if response is None:  # nobody asked
            self.abort()
            return
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._reusable = False
            if not response.complete:  # what follows a whole answer does it no harm
                self._break(AnswerBroken() if response.begun else NotHttp())
                return
        if response.complete:
            self._over(response)
            return
        if not response.begun:
            self._unfinished_bytes += len(data)
            if self._unfinished_bytes > MOST_HEAD_BYTES:
                self._break(NotHttp())
                return
        response.wake()
        if response.buffered > HIGH_WATER_BYTES and not self._paused:  # nobody took it at once
            self._paused = True
            self._transport.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed. That is how an answer ends that does not say how long it is."""
        self._reusable = False
        response = self._response
        if response is None:
            self._ended(self)
        elif response.begun and not self._delimited and exc is None:
            response.complete = True
            self._over(response)
        else:
            self._break(AnswerBroken() if response.begun else ConnectionClosed())

    # What the parser tells.

    def on_message_begin(self) -> None:
        """An answer begins; a second one to one request is none of ours."""
        if self._response is None or self._response.complete:
            self._reusable = False

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, or a trailer: these are let go, as nothing is made of them."""
        response = self._response
        if response is None or response.begun:
            return
        self._head_bytes += len(name) + len(value)
        if self._head_bytes > MOST_HEAD_BYTES:
            raise NotHttp
        name = name.lower()
        if name in (b"content-length", b"transfer-encoding"):
            self._delimited = True
        response.raw_headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is here."""
        response = self._response
        if response is None or response.complete:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:  # the answer itself is still to come
            self._interim = True
            response.raw_headers.clear()
            self._delimited = False
            return
        response.status = status
        response.begun = True

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        if self._response is not None and not self._response.complete:
            self._response.put(body)

    def on_message_complete(self) -> None:
        """The answer is whole."""
        if self._interim:
            self._interim = False
            return
        if self._response is not None:
            self._response.complete = True
            self._reusable = self._reusable and self._parser.should_keep_alive()

    def _over(self, response: Response) -> None:
        self._response = None
        if self._paused:
            self._resume()
        if not self._reusable:
            self._transport.close()
        self._ended(self)
        response.wake()

    def _break(self, error: WireError) -> None:
        response, self._response = self._response, None
        self.abort()
        self._ended(self)
        if response is not None:
            response.fail(error)

    def _resume(self) -> None:
        if self._paused:
            self._paused = False
            self._transport.resume_reading()
