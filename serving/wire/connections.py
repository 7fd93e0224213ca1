"""Connections to all replicas: kept for the next request, made where there is none."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
import time
from collections import deque
from types import TracebackType
from typing import Any, NamedTuple, Self

import aiohappyeyeballs

from steersman.serving.wire.connection import Connection
from steersman.serving.wire.errors import CannotConnect, CannotResolve

RESOLVED_S = 30.0
"""For how long the addresses of a name are believed."""
_NEXT_ADDRESS_S = 0.25
"""How long one address of a name is waited for before the next is tried beside it (RFC 8305)."""


class Origin(NamedTuple):
    """Where a connection leads."""

    host: str
    """A name or an address, without brackets."""
    port: int
    tls: ssl.SSLContext | None
    """None for a plain connection."""
    server_name: str
    """What the certificate has to be for."""


class Connections:
    """An asynchronous context manager; lives on one event loop.

    Args:
        keepalive_s: how long an idle connection is kept. Shorter than the servers' own patience, or one
            may be closed just as a request is sent on it.
        per_origin: most connections to one replica at once; 0 for no limit.
    """

    def __init__(self, *, keepalive_s: float, per_origin: int) -> None:
        self._keepalive_s = keepalive_s
        self._per_origin = per_origin
        self._idle: dict[Origin, deque[Connection]] = {}
        self._busy: dict[Connection, Origin] = {}
        self._slots: dict[Origin, asyncio.Semaphore] = {}
        self._resolved: dict[tuple[str, int], tuple[float, list[Any]]] = {}
        self._sweep: asyncio.TimerHandle | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in [*self._busy, *(each for idle in self._idle.values() for each in idle)]:
            connection.abort()
        await asyncio.sleep(0)  # let them end

    async def get(self, origin: Origin, within_s: float) -> Connection:
        """A connection for one request: one that is idle, or a new one.

        Raises:
            CannotConnect: it cannot be reached.
            TimeoutError: not in this time, the wait for one of a limited number included.
        """
        if self._per_origin:
            slots = self._slots.setdefault(origin, asyncio.Semaphore(self._per_origin))
            if slots.locked():
                async with asyncio.timeout(within_s):
                    await slots.acquire()
            else:
                await slots.acquire()
        connection = self._take_idle(origin)
        if connection is None:
            try:
                connection = await self._connect(origin, within_s)
            except BaseException:
                self._free_slot(origin)
                raise
        self._busy[connection] = origin
        return connection

    def _take_idle(self, origin: Origin) -> Connection | None:
        idle = self._idle.get(origin)
        now_s = time.monotonic()
        while idle:
            connection = idle.pop()
            if connection.reusable and now_s - connection.idle_since_s < self._keepalive_s:
                return connection
            connection.abort()
        return None

    async def _connect(self, origin: Origin, within_s: float) -> Connection:
        connection = Connection(self._loop, self._ended)
        try:
            async with asyncio.timeout(within_s):
                await self._open(origin, connection)
        except TimeoutError:
            raise
        except socket.gaierror:
            raise CannotResolve from None
        except OSError as error:  # ssl.SSLError is one
            self._resolved.pop((origin.host, origin.port), None)
            raise CannotConnect.because(error) from None
        return connection

    async def _open(self, origin: Origin, connection: Connection) -> None:
        way: dict[str, Any] = {}
        if origin.tls is not None:
            way = {"ssl": origin.tls, "server_hostname": origin.server_name}
        addresses = [] if _is_address(origin.host) else await self._addresses(origin)
        if not addresses:
            await self._loop.create_connection(lambda: connection, origin.host, origin.port, **way)
            return
        opened = await aiohappyeyeballs.start_connection(
            addresses, happy_eyeballs_delay=_NEXT_ADDRESS_S, interleave=1, loop=self._loop
        )
        try:
            await self._loop.create_connection(lambda: connection, sock=opened, **way)
        except BaseException:
            opened.close()
            raise

    async def _addresses(self, origin: Origin) -> list[Any]:
        """Of a name; every connection begins with another one."""
        name, now_s = (origin.host, origin.port), time.monotonic()
        until_s, found = self._resolved.get(name, (0.0, []))
        if now_s >= until_s:
            found = await self._loop.getaddrinfo(*name, type=socket.SOCK_STREAM)
            self._resolved[name] = (now_s + RESOLVED_S, found)
        found.append(found.pop(0))
        return list(found)

    def _ended(self, connection: Connection) -> None:
        origin = self._busy.pop(connection, None)
        if origin is None:  # it was idle
            for idle in self._idle.values():
                if connection in idle:
                    idle.remove(connection)
                    break
            return
        self._free_slot(origin)
        if connection.reusable:
            connection.idle_since_s = time.monotonic()
            self._idle.setdefault(origin, deque()).append(connection)
            if self._sweep is None:
                self._sweep = self._loop.call_later(self._keepalive_s, self._close_idle)

    def _free_slot(self, origin: Origin) -> None:
        slots = self._slots.get(origin)
        if slots is not None:
            slots.release()

    def _close_idle(self) -> None:
        """Those that nobody needed; what is left is looked at again."""
        self._sweep = None
        before_s = time.monotonic() - self._keepalive_s
        for origin, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s <= before_s:
                idle.popleft().abort()
            if not idle:
                del self._idle[origin]
        if self._idle:
            self._sweep = self._loop.call_later(self._keepalive_s / 4, self._close_idle)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    return True
