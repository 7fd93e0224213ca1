"""Thousands of bad requests, and connections that say nothing, against a router in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import orjson
import yaml

from tests.serving.backends import backends, completion, whole
from tests.serving.harness import CHAT, chat
from tests.serving.raw import post, sized
from tests.support.processes import ServerProcess, free_port

BAD = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/1.1\r\n\r\n",
    post(b"content-length: 5", b"transfer-encoding: chunked", body=b"0\r\n\r\n"),
    post(b"transfer-encoding: chunked", body=b"zz\r\n"),
    sized(b"{"),
    sized(b'{"model":"\xff\xfe"}'),
    sized(b'{"model":"nobody"}'),
    sized(b'{"model":"m","messages":' + b"[" * 2000),
    sized(b"{}", b"x-steersman-priority: now"),
    sized(b"{}", b"x-long: " + b"y" * 8000),
    post(b"content-length: 99999999999", body=b"{"),
    b"GET /v1/models/%ff%fe HTTP/1.1\r\nhost: x\r\n\r\n",
    b"GET /\xff HTTP/1.1\r\nhost: x\r\n\r\n",
    b"BREW /pot HTTP/1.1\r\nhost: x\r\n\r\n",
)
REQUESTS, WARM_UP, AT_ONCE = 10_000, 3_000, 50
GROWTH_MB = 12.0


async def test_bad_requests_leave_it_serving_with_flat_memory(tmp_path: Path) -> None:
    port = free_port()
    async with backends(whole(completion())) as (backend,):
        config = tmp_path / "router.yaml"
        listed = [{"id": "b0", "url": backend.url, "models": ["m"]}]
        limits = {"header_bytes": 4096, "connections": 300}
        timeouts = {"headers_s": 1.0, "body_s": 0.5}
        values = {"backends": listed, "limits": limits, "timeouts": timeouts, "policy": {"name": "p2c"}}
        config.write_text(yaml.safe_dump(values))
        process = ServerProcess("serve", "--config", str(config), "--port", str(port))
        try:
            url = f"http://127.0.0.1:{port}"
            await asyncio.to_thread(process.wait_until_ready, url)
            await bad_requests(port, WARM_UP)
            before_mb = rss_mb(process.pid)
            async with silent_connections(port, 200):
                await bad_requests(port, REQUESTS - WARM_UP)
                assert await good_request(url) == 200, "while two hundred others say nothing"
            after_mb = rss_mb(process.pid)
            assert after_mb - before_mb < GROWTH_MB
            assert await good_request(url) == 200
            assert len(process.log) < 10_000, "who sends rubbish does not write the log"
        finally:
            process.close()


async def bad_requests(port: int, count: int) -> None:
    """Each on a connection of its own, answered or not."""
    left = iter(list(itertools.islice(itertools.cycle(BAD), count)))

    async def send_some() -> None:
        for data in left:
            with contextlib.suppress(ConnectionError):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.write(data)
                await reader.read(64)
                writer.close()

    await asyncio.gather(*(send_some() for _ in range(AT_ONCE)))


@contextlib.asynccontextmanager
async def silent_connections(port: int, count: int) -> AsyncIterator[None]:
    """Slow ones: each has sent the beginning of a head."""
    opened = []
    for _ in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-a")
        opened.append(writer)
    try:
        yield
    finally:
        for writer in opened:
            writer.close()


async def good_request(url: str) -> int:
    async with (
        aiohttp.ClientSession() as client,
        client.post(url + CHAT, data=orjson.dumps(chat())) as answer,
    ):
        assert await answer.read() == completion() or answer.status != 200
        return answer.status


def rss_mb(pid: int) -> float:
    """Resident memory of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024.0
