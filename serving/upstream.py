"""The connections to the replicas: one pooled client session for everything the router sends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import aiohttp
from yarl import URL

from steersman.serving.config import LimitSettings, TimeoutSettings
from steersman.serving.loops import Clock
from steersman.traces.errors import BackendError

if TYPE_CHECKING:
    from steersman.serving.replica import Replica

_NO_AUTO_HEADERS = ("user-agent", "accept", "accept-encoding", "content-type")
FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)
"""What a connection to a replica may raise (ValueError: an answer that is not HTTP)."""
MAX_PAGE_BYTES = 8 * 2**20
"""Of a metrics page or a model list."""


class Upstream:
    """An asynchronous context manager; lives on one event loop.

    Redirects are not followed, proxies and cookies from the environment are not used: a request goes to
    the configured replica or nowhere.
    """

    def __init__(
        self, timeouts: TimeoutSettings, limits: LimitSettings, clock: Clock = time.monotonic
    ) -> None:
        self._clock = clock
        self._limits = limits
        self.apply(timeouts)
        self._session: aiohttp.ClientSession | None = None
        self._urls: dict[tuple[str, str], URL] = {}

    def apply(self, timeouts: TimeoutSettings) -> None:
        """These count for what is sent from now on."""
        self._timeouts = timeouts
        self._usual = self._timeout(timeouts.connect_s)

    async def __aenter__(self) -> Self:
        connector = aiohttp.TCPConnector(
            limit=0,
            limit_per_host=self._limits.connections_per_replica,
            # Under the 5 s after which uvicorn, and so most engines, close an idle connection.
            keepalive_timeout=4.0,
            ttl_dns_cache=30,
        )
        self._session = aiohttp.ClientSession(
            connector=connector,
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
            read_bufsize=2**18,
            skip_auto_headers=_NO_AUTO_HEADERS,
            max_line_size=2**15,
            max_field_size=2**15,
            trust_env=False,
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def post(
        self, replica: Replica, path: str, body: bytes, headers: Sequence[tuple[str, str]]
    ) -> aiohttp.ClientResponse:
        """Send a request; returns once the replica's response headers are here.

        Args:
            replica: where to.
            path: path and query, already encoded.
            body: sent as it is.
            headers: sent as they are.

        Raises:
            One of FAILURES; `describe_failure` puts it in words.
        """
        response = await self._open.post(
            self._url(replica.url, path), data=body, headers=headers, **self._way_to(replica)
        )
        replica.pulse.heard(self._clock())
        return response

    async def get(self, replica: Replica, path: str, *, timeout_s: float) -> bytes:
        """Fetch a small page.

        Raises:
            BackendError: unreachable, too slow, too large, or not 2xx.
        """
        headers = {"authorization": replica.authorization} if replica.authorization else {}
        replica.pulse.asked(self._clock())
        try:
            async with (
                asyncio.timeout(timeout_s),
                self._open.get(
                    self._url(replica.url, path), headers=headers, **self._way_to(replica)
                ) as response,
            ):
                replica.pulse.heard(self._clock())
                page = await response.content.read(MAX_PAGE_BYTES + 1)
                while not response.content.at_eof() and len(page) <= MAX_PAGE_BYTES:
                    page += await response.content.read(MAX_PAGE_BYTES + 1 - len(page))
        except FAILURES as error:
            where = f"{replica.url}{path}"
            raise BackendError(f"{where}: {describe_failure(error)}; is the backend running?") from None
        if not 200 <= response.status < 300:
            raise BackendError(f"{replica.url}{path}: answered {response.status}, expected 200")
        if len(page) > MAX_PAGE_BYTES:
            raise BackendError(f"{replica.url}{path}: answered more than {MAX_PAGE_BYTES} bytes")
        return page

    def _way_to(self, replica: Replica) -> dict[str, Any]:
        """How this replica is reached, where that is not as everywhere."""
        way: dict[str, Any] = {"allow_redirects": False, "timeout": self._usual}
        if replica.tls is not None:
            way |= {"ssl": replica.tls, "server_hostname": replica.server_name}
        if replica.settings.connect_s is not None:
            way["timeout"] = self._timeout(replica.settings.connect_s)
        return way

    def _timeout(self, connect_s: float) -> aiohttp.ClientTimeout:
        # Without a limit on connections, getting one is resolving, connecting and securing it.
        limited = self._limits.connections_per_replica > 0
        return aiohttp.ClientTimeout(
            total=None, connect=None if limited else connect_s, sock_connect=connect_s
        )

    @property
    def _open(self) -> aiohttp.ClientSession:
        if self._session is None:
            raise RuntimeError("enter the Upstream before using it")
        return self._session

    def _url(self, base: str, path: str) -> URL:
        url = self._urls.get((base, path))
        if url is None:
            url = URL(base + path, encoded=True)
            if "?" not in path:
                self._urls[base, path] = url
        return url


def describe_failure(error: BaseException) -> str:
    """A client-side failure in a few words, without addresses or headers."""
    if isinstance(error, TimeoutError):
        return "no answer in time"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "its host name cannot be resolved"
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect ({error.strerror or error.os_error})"
    if isinstance(error, (aiohttp.ServerDisconnectedError, ConnectionResetError, BrokenPipeError)):
        return "it closed the connection"
    if isinstance(error, aiohttp.ClientPayloadError):
        return "its answer broke off"
    return f"{type(error).__name__}"
