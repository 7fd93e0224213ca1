"""A real HTTP server on loopback that answers as a test says: for what no healthy server would do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":" sea"},"finish_reason":null}]}\n\n'
ROLE = b'data: {"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}\n\n'
DONE = b"data: [DONE]\n\n"


@dataclass
class ScriptedServer:
    """What it was asked, and where it is."""

    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of chat requests, names in lower case."""
    in_flight: int = 0
    most_in_flight: int = 0


@asynccontextmanager
async def scripted_server(
    answer: Answer, *, models: tuple[str, ...] = ("m",)
) -> AsyncIterator[ScriptedServer]:
    """Serve `/v1/models`, and `answer` for chat completions."""
    server = ScriptedServer()

    async def chat(request: web.Request) -> web.StreamResponse:
        server.bodies.append(await request.json())
        server.headers.append({name.lower(): value for name, value in request.headers.items()})
        server.in_flight += 1
        server.most_in_flight = max(server.most_in_flight, server.in_flight)
        try:
            return await answer(request)
        finally:
            server.in_flight -= 1

    async def list_models(_request: web.Request) -> web.Response:
        return web.json_response({"object": "list", "data": [{"id": model} for model in models]})

    app = web.Application(client_max_size=2**26)
    app.router.add_post("/v1/chat/completions", chat)
    app.router.add_get("/v1/models", list_models)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield server
    finally:
        await runner.cleanup()


def streamed(
    *pieces: bytes, headers: dict[str, str] | None = None, gap_s: float = 0.0, cut: bool = False
) -> Answer:
    """An answer that sends these pieces; `cut`: then drops the connection."""

    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"content-type": "text/event-stream", **(headers or {})})
        await response.prepare(request)
        for piece in pieces:
            await response.write(piece)
            await asyncio.sleep(gap_s)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return answer


def refused(status: int, body: str = '{"error":{"message":"no"}}') -> Answer:
    """An answer that is an error."""

    async def answer(_request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=body, content_type="application/json")

    return answer
