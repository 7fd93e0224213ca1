"""A real router on a loopback port, in the test's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson

from steersman.serving.app import create_app
from steersman.serving.config import RouterSettings
from steersman.serving.parts import Parts
from steersman.serving.reload import Reloader
from steersman.serving.server import make_server
from steersman.traces.settings import parse_settings
from tests.serving.backends import Backend, Behaviour, backends

CHAT = "/v1/chat/completions"


@dataclass
class Routed:
    """The router, and a client for it."""

    url: str
    parts: Parts
    client: aiohttp.ClientSession
    connections: set[Any] = field(default_factory=set)
    """Of clients, as the server knows them; the session's own are among them."""

    async def post(
        self, body: Any = None, *, path: str = CHAT, headers: dict[str, str] | None = None
    ) -> tuple[int, bytes, dict[str, str]]:
        """Status, whole body and headers of the answer."""
        data = body if isinstance(body, bytes) else orjson.dumps(chat() if body is None else body)
        sent = {"content-type": "application/json"} | (headers or {})
        async with self.client.post(self.url + path, data=data, headers=sent) as answer:
            return answer.status, await answer.read(), {k.lower(): v for k, v in answer.headers.items()}

    async def get(self, path: str) -> tuple[int, bytes]:
        async with self.client.get(self.url + path) as answer:
            return answer.status, await answer.read()

    async def metric(self, line: str) -> float:
        """The value of one sample on the metrics page; 0 if it is not there."""
        _, page = await self.get("/metrics")
        for row in page.decode().splitlines():
            if row.startswith(line + " "):
                return float(row.rpartition(" ")[2])
        return 0.0


def chat(text: str = "What is the capital of France?", *, stream: bool = False, **more: Any) -> Any:
    """A chat request."""
    messages = [{"role": "user", "content": text}]
    return {"model": "m", "messages": messages, "stream": stream} | more


def settings_for(replicas: Sequence[Backend], **sections: Any) -> RouterSettings:
    """Settings for these backends on a free port, with fast loops."""
    values: dict[str, Any] = {
        "port": 0,
        "backends": [{"id": b.name, "url": b.url, "models": ["m"]} for b in replicas],
        "policy": {"name": "round-robin"},
        "scrape": {"interval_s": 0.05},
        "health": {"interval_s": 0.1, "timeout_s": 1.0},
        "timeouts": {"drain_s": 1.0},
    }
    values |= sections
    values["policy"] = {"compiled": "never"} | values["policy"]  # that has tests of its own
    return parse_settings(values, RouterSettings, source="test")


def reloader_of(parts: Parts) -> Reloader:
    """One whose file says what the router does."""
    return Reloader(parts, lambda: parts.settings)


@contextlib.asynccontextmanager
async def routing(settings: RouterSettings) -> AsyncIterator[Routed]:
    """Run the router until the block ends."""
    app = create_app(settings)
    server = make_server(app, settings)
    serving = asyncio.create_task(server.serve())
    try:
        while not server.started:
            assert not serving.done(), "the router did not start"
            await asyncio.sleep(0.005)
        port = server.servers[0].sockets[0].getsockname()[1]
        async with aiohttp.ClientSession(auto_decompress=False) as client:
            url = f"http://127.0.0.1:{port}"
            yield Routed(url, app.state.parts, client, server.server_state.connections)
    finally:
        server.should_exit = True
        await serving


async def eventually(condition: Any, *, within_s: float = 20.0) -> None:
    """Wait until a condition (a plain or an async callable) holds."""
    deadline_s = asyncio.get_running_loop().time() + within_s
    while True:
        value = condition()
        if await value if asyncio.iscoroutine(value) else value:
            return
        assert asyncio.get_running_loop().time() < deadline_s, "it did not happen in time"
        await asyncio.sleep(0.01)


@contextlib.asynccontextmanager
async def rig(*answers: Behaviour, **sections: Any) -> AsyncIterator[tuple[Routed, list[Backend]]]:
    """Backends with these behaviours, and a router in front of them."""
    async with backends(*answers) as fleet, routing(settings_for(fleet, **sections)) as router:
        yield router, fleet
