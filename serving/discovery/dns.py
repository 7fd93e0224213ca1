"""Replicas behind a name: its addresses (A, AAAA), or the hosts and ports of its service record (SRV).

Addresses come from the system's resolver, which knows /etc/hosts and search domains. Service records,
and name servers of one's own, need the `dnspython` package.
"""

from __future__ import annotations

import asyncio
import importlib
import socket
from typing import Any, cast

from steersman.serving.discovery.settings import DnsSource
from steersman.serving.discovery.source import DiscoveryError, Tell, backend_at
from steersman.traces.errors import ConfigError

Places = list[tuple[str, int]]
"""Hosts and ports."""


class DnsWatch:
    """The control loop of one name.

    A look-up that fails, or finds nothing, changes nothing: name servers fail more often than all
    replicas leave at once, and those that did leave fail their health checks.

    Raises:
        ConfigError: `dnspython` is needed and not installed.
    """

    def __init__(self, settings: DnsSource, tell: Tell) -> None:
        self.name = f"dns {settings.name}"
        self._settings = settings
        self._tell = tell
        self._resolver: Any = None
        if settings.record == "srv" or settings.servers:
            self._resolver = _resolver(settings)

    @property
    def retry_s(self) -> float:
        """Pause after a failure."""
        return self._settings.interval_s

    async def look(self) -> float:
        """Look the name up; returns the pause.

        Raises:
            DiscoveryError: no answer, or none with an address.
        """
        settings = self._settings
        try:
            async with asyncio.timeout(settings.timeout_s):
                places = await self._places()
        except TimeoutError:
            raise DiscoveryError(
                f"no answer within {settings.timeout_s} s; is there a resolver?"
            ) from None
        self._tell(
            [
                backend_at(settings.replica, settings.scheme, host, port, settings.path)
                for host, port in sorted(set(places))
            ]
        )
        return settings.interval_s

    async def _places(self) -> Places:
        if self._settings.record == "srv":
            answer = await self._ask("SRV")
            return [(str(record.target).rstrip("."), int(record.port)) for record in answer]
        port = self._settings.port
        if self._resolver is not None:
            answers = await asyncio.gather(self._ask("A"), self._ask("AAAA"), return_exceptions=True)
            told = [answer for answer in answers if not isinstance(answer, BaseException)]
            if not told:
                raise cast("BaseException", answers[0])
            return [(str(record.address), port) for answer in told for record in answer]
        return await self._system_addresses(port)

    async def _system_addresses(self, port: int) -> Places:
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(self._settings.name, port, type=socket.SOCK_STREAM)
        except OSError as error:
            raise DiscoveryError(f"cannot be resolved ({error.strerror}); check the name") from None
        return [(str(address[0]), port) for *_, address in found]

    async def _ask(self, kind: str) -> Any:
        exceptions = importlib.import_module("dns.exception")
        try:
            return await self._resolver.resolve(self._settings.name, kind, search=True)
        except exceptions.DNSException as error:
            reason = " ".join(str(error).split())[:200]
            raise DiscoveryError(f"no {kind} record ({reason}); check the name") from None


def _resolver(settings: DnsSource) -> Any:
    try:
        resolving = importlib.import_module("dns.asyncresolver")
        nameservers = importlib.import_module("dns.nameserver")
    except ImportError:
        raise ConfigError(
            f"discovery of '{settings.name}': record 'srv' and 'servers' need the 'dnspython' package; "
            "install steersman[discovery]"
        ) from None
    resolver = resolving.Resolver(configure=not settings.servers)
    if settings.servers:
        resolver.nameservers = [
            nameservers.Do53Nameserver(*_server(server)) for server in settings.servers
        ]
    resolver.lifetime = settings.timeout_s
    return resolver


def _server(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if colon and port.isdigit() and ("]" in host or ":" not in host):
        return host.strip("[]"), int(port)
    return text.strip("[]"), 53
