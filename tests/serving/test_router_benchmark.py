"""The benchmark's backend and its load agree on what an answer is, and failures are counted as such."""

from __future__ import annotations

import asyncio
import importlib
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


@pytest.fixture
def modules(monkeypatch: pytest.MonkeyPatch) -> tuple[ModuleType, ModuleType]:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    return importlib.import_module("router_backend"), importlib.import_module("router_load")


async def test_streams_are_read_to_their_end(modules: tuple[ModuleType, ModuleType]) -> None:
    backend, load = modules
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: backend.Backend(backend.Pace(1.0)), "127.0.0.1", 0)
    async with server:
        seen = await load.load(server.sockets[0].getsockname()[1], 3, 0.1, ramp_s=0.01)
    assert seen.failed == 0
    assert seen.completed >= 3
    assert len(seen.ttft_s) == seen.completed
    assert 0.0 < min(seen.delay_s) < 1.0
    assert seen.per_s > 0.0


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n8\r\ndata: 1\n\r\n",
    ],
    ids=["refused", "too few events", "broken off"],
)
async def test_what_is_not_a_whole_answer_has_failed(
    modules: tuple[ModuleType, ModuleType], answer: bytes
) -> None:
    load = modules[1]

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(answer)
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    async with server:
        seen: Any = await load.load(server.sockets[0].getsockname()[1], 1, 0.01, ramp_s=0.0)
    assert (seen.completed, seen.failed) == (0, 1)
    assert seen.first
