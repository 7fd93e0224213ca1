"""One client's connection: uvicorn's HTTP/1.1 protocol, stricter and with bounds.

What is added to it, and why:

- a time for the head of a request, and for the rest of a body nobody waits for any more: who sends a
  byte a minute (slow loris) does not hold a connection for ever;
- a size of the head: the parser below would gather a header without end;
- a number of connections;
- trailers are dropped: uvicorn would append them to the headers, after these have been checked;
- an offered upgrade (`h2c`, which Java's client offers with every request) is declined and the request
  served; the parser below would take its body for the next request;
- HTTP/0.9, chunked HTTP/1.0 and requests without exactly one `Host` are refused, as RFC 9112 has it;
- an error is told in OpenAI's shape, and never into the middle of another request's answer;
- each request has an `Outlet`, which spares its stream a task and most coroutines.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import httptools
from uvicorn._types import ASGI3Application
from uvicorn.config import Config
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from steersman.serving.errors import ApiError, Code
from steersman.serving.outlet import EXTENSION, Outlet
from steersman.serving.parts import Parts

HTTP_ERROR = ApiError(
    400, Code.INVALID_HTTP, "this is not a valid HTTP/1.1 request; correct its framing"
)
HEAD_TOO_LARGE = ApiError(431, Code.HEADERS_TOO_LARGE, "the head of the request is too large; send less")
HEAD_TIMEOUT = ApiError(408, Code.HEADERS_TIMEOUT, "the headers did not arrive in time; send them again")
CROWDED = ApiError(503, Code.TOO_MANY_CONNECTIONS, "too many connections; try again", retry_after_s=1.0)
_REASONS = {
    400: b"Bad Request",
    408: b"Request Timeout",
    431: b"Request Header Fields Too Large",
    503: b"Service Unavailable",
}
LINGER_S = 2.0
"""For a client to read an answer that came before all was sent, or the rest of its last one."""
_URL_BYTES = 8192
"""Of a head, beside its headers."""

_quiet = logging.getLogger("steersman.serving.http")
"""uvicorn warns of each broken request, which would hand the log to whoever sends them. They are
counted; its errors, which are ours, still come through."""
_quiet.setLevel(logging.ERROR)


def protocol_of(parts: Parts) -> type[asyncio.Protocol]:
    """The protocol for a router's connections, as uvicorn wants it."""
    return cast("type[asyncio.Protocol]", partial(RouterProtocol, parts=parts))


class RouterProtocol(HttpToolsProtocol):
    """See the module."""

    cycle: RequestResponseCycle | None  # type: ignore[assignment]

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
        *,
        parts: Parts,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.logger = _quiet
        self._parts = parts
        self._outlet: Outlet | None = None
        """Of the request that is being answered, or was last."""
        self.timeout_keep_alive = math.ceil(parts.settings.timeouts.keep_alive_s)
        self._in_head = False
        self._in_message = False
        self._head_bytes = 0
        self._declined = False
        """Reading the body of a request whose upgrade was declined, with a parser of its own."""
        self._broken = False
        self._idle_until_s = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Somebody connected."""
        super().connection_made(transport)
        most = self._parts.settings.limits.connections
        if most and len(self.connections) > most:
            self._refuse(CROWDED)
            self.transport.close()  # it is not lingered for: there are too many already
        else:
            self._expect(self._parts.settings.timeouts.headers_s, self._head_is_late)

    def connection_lost(self, exc: Exception | None) -> None:
        """It is gone."""
        self._expect_nothing()
        self._unset_keepalive_if_required()
        super().connection_lost(exc)
        if self._outlet is not None:
            self._outlet.tell_gone()

    def data_received(self, data: bytes) -> None:
        """Bytes of requests."""
        if self._broken:
            return
        self._unset_keepalive_if_required()
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as offered:
            self._decline(data[offered.args[0] :])
        except httptools.HttpParserError:
            self._refuse(HTTP_ERROR)
        self._received(len(data))

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        if self._declined:
            return
        self._in_head = self._in_message = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        if not self._declined:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header; what comes after the body is none."""
        if self._in_head and not self._declined:
            name = name.lower()
            if name == b"expect" and value.lower() == b"100-continue":
                self.expect_100_continue = True
            self.headers.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is here, and the request begins."""
        if self._declined:
            return
        self._in_head = False
        self._expect_nothing()
        self._check_head()
        super().on_headers_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._outlet = Outlet(cycle, self.transport, self.flow)
        cycle.scope["extensions"] = {EXTENSION: self._outlet}  # type: ignore[dict-item]
        super()._start_asgi_task(cycle, app)

    def on_body(self, body: bytes) -> None:
        """A piece of the body."""
        assert self.cycle is not None
        if not self.cycle.response_complete:
            super().on_body(body)

    def on_message_complete(self) -> None:
        """All of the request is here."""
        if self.parser.should_upgrade() and self._has_body():
            return  # its body comes after the upgrade that is declined
        self._in_message = self._declined = False
        if self._answered:
            self._expect_nothing()
        super().on_message_complete()

    def on_response_complete(self) -> None:
        """The answer is out; of the request, more may still be coming that nobody wants."""
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self._next_or_idle()
        if self._broken:
            self._close()
        elif self._in_message and not self._in_head and self._answered:
            self._unset_keepalive_if_required()
            self._expect(LINGER_S, self._close)

    def _next_or_idle(self) -> None:
        """As uvicorn has it, but without a timer for each answer."""
        self.flow.resume_reading()
        if self.pipeline:
            self._unset_keepalive_if_required()
            self._start_asgi_task(*self.pipeline.pop())
        else:
            self._wait_for_requests()

    def send_400_response(self, msg: str) -> None:  # noqa: ARG002
        """What the parser cannot frame."""
        self._refuse(HTTP_ERROR)

    def _unset_keepalive_if_required(self) -> None:
        """It is not idle any more."""
        if self._idle_until_s:
            self._idle_until_s = 0.0
            self._parts.deadlines.forget(self)

    def due_s(self) -> float:
        """For `Deadlines`: until when it may be idle."""
        return self._idle_until_s

    def late(self) -> None:
        """For `Deadlines`: idle for too long."""
        self._idle_until_s = 0.0
        self._close()

    def _received(self, size: int) -> None:
        """After the parser has had so many bytes."""
        if self._broken:
            return
        if self._in_head:
            self._head_bytes += size
            if self._head_bytes > self._parts.settings.limits.header_bytes + _URL_BYTES:
                self._refuse(HEAD_TOO_LARGE)
            elif self._timer is None:  # most heads come in one piece, and need none
                self._expect(self._parts.settings.timeouts.headers_s, self._head_is_late)
        elif self._is_idle and self._timer is None and not self._idle_until_s:
            self._wait_for_requests()  # blank lines between requests begin none

    @property
    def _answered(self) -> bool:
        """Whether the newest request has its whole answer."""
        return self.cycle is not None and self.cycle.response_complete

    @property
    def _is_idle(self) -> bool:
        """Whether no request is under way."""
        return not self._in_message and (self.cycle is None or self.cycle.response_complete)

    def _check_head(self) -> None:
        """Raises:
        ValueError: not a request as it should be; the parser tells `data_received`.
        """
        names = [name for name, _ in self.headers]
        version = self.parser.get_http_version()
        if version == "1.1":
            if names.count(b"host") != 1:
                raise ValueError("not one Host")
        elif version != "1.0" or b"transfer-encoding" in names:
            raise ValueError("neither HTTP/1.1 nor HTTP/1.0")

    def _has_body(self) -> bool:
        return any(
            name == b"transfer-encoding" or (name == b"content-length" and value.strip(b"0 \t"))
            for name, value in self.headers
        )

    def _decline(self, rest: bytes) -> None:
        """Go on in HTTP/1.1 after an upgrade was offered. The old parser has ended; the new one is told
        how the body is framed, and nothing else."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
        if self._has_body():
            framing = (b"content-length", b"transfer-encoding")
            lines = [b"%s: %s\r\n" % (name, value) for name, value in self.headers if name in framing]
            self._declined = True
            self.parser.feed_data(b"POST / HTTP/1.1\r\n" + b"".join(lines) + b"\r\n")
        if rest:
            self.data_received(rest)

    def _refuse(self, error: ApiError) -> None:
        """Hang up, and tell the client why unless it is being told something else."""
        self._broken = True
        self._expect_nothing()
        self._parts.metrics.refusals.labels(error.code.value).inc()
        if self.pipeline:  # an earlier request is being answered, and that is the last one
            self.pipeline.clear()
            return
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            if self._in_head:  # as above
                cycle.keep_alive = False
                return
            # Its own body is what is broken: whoever waits for the rest is told that it will not come.
            cycle.disconnected = True
            cycle.message_event.set()
            if self._outlet is not None:
                self._outlet.tell_gone()
            if cycle.response_started:
                self._close()
                return
        self._parts.metrics.responses.labels(str(error.status)).inc()
        head = b"".join(b"%s: %s\r\n" % header for header in error.headers)
        status = b"HTTP/1.1 %d %s\r\n" % (error.status, _REASONS[error.status])
        self.transport.write(status + head + b"connection: close\r\n\r\n" + error.body)
        self._close()

    def _head_is_late(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            # It sent the beginning of another request early; that one's time comes.
            self._expect(self._parts.settings.timeouts.headers_s, self._head_is_late)
        elif self._in_head:
            self._refuse(HEAD_TIMEOUT)
        else:
            self._close()  # it never said anything

    def _close(self) -> None:
        """Hang up. What is still coming is taken and dropped for a moment, since closing at once would
        reset the connection and lose the answer; a client that does not read is not waited for."""
        self._broken = True
        if self.transport.can_write_eof() and not self.transport.is_closing():
            self.transport.write_eof()
        else:
            self.transport.close()
        self.loop.call_later(LINGER_S, self.transport.abort)

    def _wait_for_requests(self) -> None:
        """Nothing is under way: the client may be idle for so long."""
        self._idle_until_s = self.loop.time() + self.timeout_keep_alive
        self._parts.deadlines.watch(self, self._idle_until_s)

    def _expect(self, within_s: float, late: Callable[[], None]) -> None:
        self._expect_nothing()
        self._timer = self.loop.call_later(within_s, self._on_timer, late)

    def _on_timer(self, late: Callable[[], None]) -> None:
        self._timer = None
        late()

    def _expect_nothing(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
