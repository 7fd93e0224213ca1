"""Replicas behind a Kubernetes Service: its EndpointSlices, listed once and then watched.

A ready endpoint is a replica; one that is terminating, or no longer ready, drains. The API is spoken
directly (two requests: list, watch), so no client library is needed. Whatever fails, the replicas that
were known stay; after a break everything is listed anew, as the API asks for.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from steersman.serving.backend_settings import REPLICA_ID, BackendSettings
from steersman.serving.discovery.settings import KubernetesSource
from steersman.serving.discovery.source import DiscoveryError, Tell, backend_at

NAMESPACE_FILE = "/var/run/secrets/kubernetes.io/serviceaccount/namespace"
LABEL = "kubernetes.io/service-name"
MOST_BYTES = 16 * 2**20
"""Of a list, and of one event."""
_FAILURES = (aiohttp.ClientError, OSError, TimeoutError, ValueError)


class KubernetesWatch:
    """The source of one Service. `look` lists, then returns when the watch ends."""

    def __init__(self, settings: KubernetesSource, tell: Tell) -> None:
        self._settings = settings
        self._namespace = settings.namespace or _own_namespace()
        self.name = f"kubernetes {self._namespace}/{settings.service}"
        self._tell = tell
        self._slices: dict[str, dict[str, Any]] = {}
        self._version = ""
        """From which the next watch goes on; empty: list first."""

    @property
    def retry_s(self) -> float:
        """Pause after a failure."""
        return self._settings.retry_s

    async def look(self) -> float:
        """List if that is due, or watch until the watch ends; tells of every change.

        Raises:
            DiscoveryError: the API server cannot be reached, or refuses.
        """
        pause_s = 0.0
        try:
            async with self._session() as session:
                if not self._version:
                    await self._list(session)
                elif not await self._watch(session):
                    pause_s = self._settings.retry_s  # a watch that ends at once, again and again
        except _FAILURES as error:
            self._version = ""
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise DiscoveryError(f"the API server cannot be used ({reason}); check api_url") from None
        return pause_s

    async def _list(self, session: aiohttp.ClientSession) -> None:
        async with session.get(self._path, params=self._query()) as answer:
            self._check(answer)
            listed = orjson.loads(await _bounded(answer.content))
        self._slices = {_name(item): item for item in listed.get("items") or ()}
        self._version = str((listed.get("metadata") or {}).get("resourceVersion") or "0")
        self._tell_all()

    async def _watch(self, session: aiohttp.ClientSession) -> bool:
        """Take events until the watch ends; returns whether there were any."""
        query = self._query() | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(int(self._settings.watch_s)),
        }
        silent = aiohttp.ClientTimeout(
            total=None, sock_connect=10.0, sock_read=self._settings.watch_s + 30
        )
        async with session.get(self._path, params=query, timeout=silent) as answer:
            if answer.status == 410:  # too old
                self._version = ""
                return False
            self._check(answer)
            news = False
            async for line in _lines(answer.content):
                news = True
                if not self._take(orjson.loads(line)):
                    break
            return news

    def _take(self, event: dict[str, Any]) -> bool:
        """One event of a watch; False if everything must be listed again."""
        kind, item = event.get("type"), event.get("object") or {}
        if kind == "ERROR":
            self._version = ""
            return False
        self._version = str((item.get("metadata") or {}).get("resourceVersion") or self._version)
        if kind == "BOOKMARK":
            return True
        if kind == "DELETED":
            self._slices.pop(_name(item), None)
        elif (item.get("metadata") or {}).get("labels", {}).get(LABEL) == self._settings.service:
            self._slices[_name(item)] = item
        self._tell_all()
        return True

    def _tell_all(self) -> None:
        found: dict[str, BackendSettings] = {}
        for item in self._slices.values():
            for backend in replicas_of(item, self._settings):
                found[backend.url] = backend
        self._tell([found[url] for url in sorted(found)])

    @property
    def _path(self) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self._namespace}/endpointslices"

    def _query(self) -> dict[str, str]:
        return {"labelSelector": f"{LABEL}={self._settings.service}"}

    def _check(self, answer: aiohttp.ClientResponse) -> None:
        if answer.status != 200:
            hint = "may the service account list and watch endpointslices?"
            raise DiscoveryError(f"{self._path} answered {answer.status}; {hint}")

    def _session(self) -> aiohttp.ClientSession:
        settings = self._settings
        url = settings.api_url or _cluster_url()
        headers = {"accept": "application/json"}
        if settings.token_file and Path(settings.token_file).exists():
            token = Path(settings.token_file).read_text(encoding="ascii").strip()
            headers["authorization"] = f"Bearer {token}"
        secure: ssl.SSLContext | bool = True
        if url.startswith("https") and settings.ca_file:
            secure = ssl.create_default_context(cafile=settings.ca_file)
        return aiohttp.ClientSession(
            url,
            headers=headers,
            connector=aiohttp.TCPConnector(ssl=secure),
            timeout=aiohttp.ClientTimeout(total=30.0, sock_connect=10.0),
            read_bufsize=2**18,
        )


def replicas_of(item: dict[str, Any], settings: KubernetesSource) -> list[BackendSettings]:
    """The replicas that one EndpointSlice names: its endpoints that are ready and not terminating.

    `ready` not given counts as true, as the API defines it. An endpoint's first address stands for it,
    as the API recommends.
    """
    port = _port(item.get("ports") or (), settings.port)
    if port is None:
        return []
    backends = []
    for endpoint in item.get("endpoints") or ():
        conditions = endpoint.get("conditions") or {}
        addresses = endpoint.get("addresses") or ()
        if conditions.get("ready") is False or conditions.get("terminating") or not addresses:
            continue
        name = str((endpoint.get("targetRef") or {}).get("name") or "")
        backends.append(
            backend_at(
                settings.replica,
                settings.scheme,
                str(addresses[0]),
                port,
                settings.path,
                name if REPLICA_ID.fullmatch(name) else "",
            )
        )
    return backends


def _port(ports: Any, wanted: str) -> int | None:
    for port in ports:
        number = port.get("port")
        named = wanted in (str(port.get("name") or ""), str(number))
        if isinstance(number, int) and (named or (not wanted and len(ports) == 1)):
            return number
    return None


def _name(item: dict[str, Any]) -> str:
    return str((item.get("metadata") or {}).get("name"))


async def _bounded(content: aiohttp.StreamReader) -> bytes:
    body = bytearray()
    async for chunk in content.iter_any():
        body += chunk
        if len(body) > MOST_BYTES:
            raise ValueError(f"more than {MOST_BYTES} bytes")
    return bytes(body)


async def _lines(content: aiohttp.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line.strip():
                yield line
        if len(rest) > MOST_BYTES:
            raise ValueError(f"an event of more than {MOST_BYTES} bytes")


def _cluster_url() -> str:
    host, port = os.environ.get("KUBERNETES_SERVICE_HOST"), os.environ.get("KUBERNETES_SERVICE_PORT")
    if not host:
        raise DiscoveryError("api_url is empty and this is no pod of a cluster; name the API server")
    return f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"


def _own_namespace() -> str:
    try:
        return Path(NAMESPACE_FILE).read_text(encoding="ascii").strip() or "default"
    except OSError:
        return "default"
