"""Homes in memory and on a real Valkey server."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import pytest

from steersman.serving.affinity.store import FRESH_S, MemoryHomes, SharedHomes
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shared.server import SharedServer
from steersman.serving.shared.settings import SharedSettings
from tests.support.valkey import Valkey, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


class Router:
    """One router's view of the shared homes."""

    def __init__(self, where: Valkey, prefix: str, timeout_s: float = 60.0) -> None:
        self.now_s = 0.0
        self.metrics = RouterMetrics()
        options = SharedSettings(url=where.url, prefix=prefix, timeout_s=2.0, retry_s=5.0)
        self.server = SharedServer(options, self.metrics, lambda: self.now_s)
        self.homes = SharedHomes(self.server, timeout_s, 100, lambda: self.now_s)

    async def bind(self, group: str, replica: str) -> None:
        self.homes.bind(group, replica)
        await self.server.settled()

    async def close(self) -> None:
        await self.server.close()


async def test_in_memory() -> None:
    now_s = 0.0
    homes = MemoryHomes(10.0, 2, lambda: now_s)
    for i, group in enumerate("abc"):
        homes.bind(group, f"r{i}")
    assert [await homes.find(group) for group in "abc"] == [None, "r1", "r2"]
    now_s = 11.0
    assert await homes.find("c") is None


async def test_routers_know_each_other_s_homes(server: Valkey) -> None:
    one, other = Router(server, "known"), Router(server, "known")
    await one.bind("g", "r1")
    assert await other.homes.find("g") == "r1"
    await other.bind("g", "r2")
    assert await one.homes.find("g") == "r1", "what was heard a moment ago is not asked again"
    one.now_s += 2 * FRESH_S
    assert await one.homes.find("g") == "r2"
    assert await one.homes.find("nobody") is None
    await asyncio.gather(one.close(), other.close())


async def test_homes_end_on_the_server_too(server: Valkey) -> None:
    one, other = (Router(server, "end", timeout_s=0.2) for _ in range(2))
    await one.bind("g", "r1")
    assert await other.homes.find("g") == "r1"
    await asyncio.sleep(0.3)
    other.now_s += 2 * FRESH_S
    assert await other.homes.find("g") is None
    await asyncio.gather(one.close(), other.close())


async def test_what_the_server_knows_is_not_told_with_every_request(server: Valkey) -> None:
    one = Router(server, "told", timeout_s=60.0)
    await one.bind("g", "r1")
    before = await sets(one)
    for _ in range(10):
        one.now_s += 1.0
        await one.bind("g", "r1")
    one.now_s += 10.0
    await one.bind("g", "r1")
    assert await sets(one) - before == 1
    await one.close()


async def sets(router: Router) -> int:
    """How often something was set on the server."""
    told = await router.server.ask("INFO", "commandstats")
    assert isinstance(told, bytes)
    return int(re.search(rb"cmdstat_set:calls=(\d+)", told)[1])  # type: ignore[index]


async def test_without_the_server_a_router_goes_on_from_its_own_memory() -> None:
    with valkey() as short_lived:
        one = Router(short_lived, "alone")
        await one.bind("g", "r1")
        short_lived.kill()
        one.now_s += 2 * FRESH_S
        assert await one.homes.find("g") == "r1"
        assert await one.homes.find("new") is None
        await one.bind("new", "r2")
        assert await one.homes.find("new") == "r2"
        assert b"steersman_shared_up 0.0" in one.metrics.page()
        short_lived.close()
        short_lived.start()
        one.now_s += 6.0
        await one.bind("g", "r3")
        assert b"steersman_shared_up 1.0" in one.metrics.page()
        other = Router(short_lived, "alone")
        assert await other.homes.find("g") == "r3"
        await asyncio.gather(one.close(), other.close())
