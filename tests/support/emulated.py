"""An emulated backend inside the test's own event loop, on a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from steersman.env.emulator.app import create_backend
from steersman.env.emulator.server import bind
from steersman.env.emulator.settings import EmulatorSettings
from steersman.traces.settings import parse_settings

PROFILE = "a100-llama-3.1-8b"


@asynccontextmanager
async def emulated(**settings: Any) -> AsyncIterator[str]:
    """Serve one replica; the block gets its URL."""
    parsed = parse_settings({"profile": PROFILE} | settings, EmulatorSettings, source="test")
    listener = bind("127.0.0.1", 0)
    config = uvicorn.Config(
        create_backend(parsed), lifespan="on", access_log=False, log_level="critical"
    )
    server = uvicorn.Server(config)
    task = asyncio.create_task(server._serve(sockets=[listener]))
    try:
        while not server.started:
            assert not task.done(), "the backend did not start"
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        server.force_exit = True
        await task
        listener.close()
