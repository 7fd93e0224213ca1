"""The way to the replicas: one pool of connections for everything the router sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from weakref import WeakKeyDictionary

from yarl import URL

from steersman.serving.config import LimitSettings, TimeoutSettings
from steersman.serving.loops import Clock
from steersman.serving.wire.connections import Connections, Origin
from steersman.serving.wire.errors import WireError
from steersman.serving.wire.response import Response
from steersman.traces.errors import BackendError

if TYPE_CHECKING:
    from steersman.serving.replica import Replica

RawHeaders = Sequence[tuple[bytes, bytes]]

FAILURES = (WireError, OSError, TimeoutError)
"""What a connection to a replica may raise."""
MAX_PAGE_BYTES = 8 * 2**20
"""Of a metrics page or a model list."""
KEEPALIVE_S = 4.0
"""Under the 5 s after which uvicorn, and so most engines, close an idle connection."""


@dataclass(frozen=True, slots=True)
class _Target:
    """A replica's URL, taken apart once."""

    origin: Origin
    host: bytes
    """For the Host header."""
    prefix: bytes
    """Of every path."""


class Upstream:
    """An asynchronous context manager; lives on one event loop.

    Redirects are not followed, proxies and cookies from the environment are not used: a request goes to
    the configured replica or nowhere.
    """

    def __init__(
        self, timeouts: TimeoutSettings, limits: LimitSettings, clock: Clock = time.monotonic
    ) -> None:
        self._clock = clock
        self.apply(timeouts)
        self._connections = Connections(
            keepalive_s=KEEPALIVE_S, per_origin=limits.connections_per_replica
        )
        self._targets: WeakKeyDictionary[Replica, _Target] = WeakKeyDictionary()

    def apply(self, timeouts: TimeoutSettings) -> None:
        """These count for what is sent from now on."""
        self._timeouts = timeouts

    async def __aenter__(self) -> Self:
        await self._connections.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._connections.__aexit__(kind, error, trace)

    def post(
        self, replica: Replica, path: str, body: bytes, headers: RawHeaders
    ) -> Coroutine[Any, Any, Response]:
        """Send a request; returns once the replica's response headers are here.

        Args:
            replica: where to.
            path: path and query, already encoded.
            body: sent as it is.
            headers: sent as they are, but for those that frame the message, which are added.

        Raises:
            One of FAILURES; `describe_failure` puts it in words.
        """
        return self.ask(replica, b"POST", path, body, headers)

    def ask(
        self, replica: Replica, method: bytes, path: str, body: bytes, headers: RawHeaders
    ) -> Coroutine[Any, Any, Response]:
        """As `post`, by another method; a body that is empty is none, but for POST."""
        if body or method == b"POST":
            headers = [*headers, (b"content-length", b"%d" % len(body))]
        return self._ask(replica, method, path, headers, body)

    async def get(self, replica: Replica, path: str, *, timeout_s: float) -> bytes:
        """Fetch a small page.

        Raises:
            BackendError: unreachable, too slow, too large, or not 2xx.
        """
        headers = [(b"accept", b"*/*"), (b"accept-encoding", b"identity")]
        if replica.authorization:
            headers.append((b"authorization", replica.authorization.encode()))
        replica.pulse.asked(self._clock())
        response: Response | None = None
        try:
            async with asyncio.timeout(timeout_s):
                response = await self._ask(replica, b"GET", path, headers, b"")
                page = await response.read_up_to(MAX_PAGE_BYTES + 1)
        except FAILURES as error:
            where = f"{replica.url}{path}"
            raise BackendError(f"{where}: {describe_failure(error)}; is the backend running?") from None
        finally:
            if response is not None:
                response.close()
        if not 200 <= response.status < 300:
            raise BackendError(f"{replica.url}{path}: answered {response.status}, expected 200")
        if len(page) > MAX_PAGE_BYTES:
            raise BackendError(f"{replica.url}{path}: answered more than {MAX_PAGE_BYTES} bytes")
        return page

    async def _ask(
        self, replica: Replica, method: bytes, path: str, headers: RawHeaders, body: bytes
    ) -> Response:
        target = self._targets.get(replica)
        if target is None or target.origin.tls is not replica.tls:  # its certificates were read anew
            target = self._targets[replica] = _target_of(replica)
        head = request_head(method, target.prefix + path.encode("latin-1"), target.host, headers)
        within_s = replica.connects_within_s(self._timeouts)
        connection = await self._connections.get(target.origin, within_s)
        response = connection.ask(head, body)
        try:
            await response.headers()
        except BaseException:
            response.close()
            raise
        replica.pulse.heard(self._clock())
        return response


def request_head(method: bytes, target: bytes, host: bytes, headers: RawHeaders) -> bytes:
    """The bytes of a request before its body.

    Raises:
        ValueError: something in it would break a line.
    """
    lines = [b"%b %b HTTP/1.1" % (method, target), b"host: %b" % host]
    lines += map(b": ".join, headers)
    head = b"\r\n".join(lines)
    if head.count(b"\n") != len(lines) - 1 or head.count(b"\r") != len(lines) - 1 or b"\0" in head:
        raise ValueError("a header or the path has a line break in it")
    return head + b"\r\n\r\n"


def _target_of(replica: Replica) -> _Target:
    url = URL(replica.url)
    host = url.raw_host or ""
    server_name = replica.server_name or host
    origin = Origin(host, url.port or 80, replica.tls, server_name)
    shown = f"[{host}]" if ":" in host else host
    if not url.is_default_port():
        shown = f"{shown}:{origin.port}"
    return _Target(origin, shown.encode(), url.raw_path.rstrip("/").encode())


def describe_failure(error: BaseException) -> str:
    """A failure of a connection in a few words, without addresses or headers."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, WireError):
        return str(error)
    return f"{type(error).__name__}"
