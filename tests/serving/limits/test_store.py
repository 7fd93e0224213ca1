"""Both books decide alike: those in memory, and those on a real Valkey server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from steersman.serving.limits.memory import MemoryLimits
from steersman.serving.limits.shared import SharedLimits
from steersman.serving.limits.store import LEASE_S, Ask, Bucket, Place, Verdict
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shared.server import SharedServer
from steersman.serving.shared.settings import SharedSettings
from tests.support.valkey import Valkey, valkey


@pytest.fixture(scope="module")
def server() -> Iterator[Valkey]:
    with valkey() as running:
        yield running


@dataclass
class Time:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


class Shared:
    """Books on the server, with a clock of the test's."""

    def __init__(self, where: Valkey, clock: Time, **more: Any) -> None:
        self.metrics = RouterMetrics()
        options = SharedSettings(url=where.url, timeout_s=5.0, **more)
        self.server = SharedServer(options, self.metrics, clock)
        self.limits = SharedLimits(self.server, self.metrics, clock, clock)

    async def settle(self, ask: Ask, *more: float) -> None:
        self.limits.settle(ask, more)
        await self.server.settled()


def ask(name: str, *costs: float, capacity: float = 10.0, rate: float = 1.0, most: int = 0) -> Ask:
    buckets = tuple(Bucket(f"b{i}", capacity, rate, cost) for i, cost in enumerate(costs))
    return Ask(name, buckets, (Place("p", most),) if most else ())


amounts = st.floats(0.0, 30.0) | st.sampled_from([0.0, 1.0, 10.0, 1000.0])
steps = st.lists(
    st.tuples(
        st.sampled_from(["take", "settle", "wait"]), amounts, amounts, st.integers(0, 2), st.booleans()
    ),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=steps, capacity=st.floats(1.0, 20.0), rate=st.floats(0.01, 5.0))
def test_both_books_decide_alike(
    server: Valkey,
    steps: list[tuple[str, float, float, int, bool]],
    capacity: float,
    rate: float,
) -> None:
    async def play() -> None:
        clock = Time()
        shared, memory = Shared(server, clock), MemoryLimits(clock)
        await shared.server.ask("FLUSHALL")
        open_asks: list[Ask] = []
        for i, (what, a, b, most, two) in enumerate(steps):
            if what == "wait":
                clock.now_s += min(a, LEASE_S / 3.0)
                shared.limits.renew()
                await shared.server.settled()
            elif what == "settle" and open_asks:
                done = open_asks.pop(0)
                more = tuple(b - 10.0 for _ in done.buckets)
                memory.settle(done, more)
                await shared.settle(done, *more)
            else:
                costs = (a, b) if two else (a,)
                wish = ask(f"r{i}", *costs, capacity=capacity, rate=rate, most=most)
                here, there = await memory.take(wish), await shared.limits.take(wish)
                assert here == there
                if here.granted:
                    open_asks.append(wish)
        await shared.server.close()

    asyncio.run(play())


async def test_all_is_granted_or_nothing(server: Valkey) -> None:
    clock = Time()
    shared = Shared(server, clock, prefix="all")
    for store in (MemoryLimits(clock), shared.limits):
        first = await store.take(ask("r1", 4.0, 9.0, most=2))
        assert first == Verdict((6.0, 1.0), (1,), granted=True)
        second = await store.take(ask("r2", 4.0, 9.0, most=2))
        assert second == Verdict((6.0, 1.0), (1,), granted=False, waits_s=(0.0, 8.0))
        third = await store.take(ask("r3", 4.0, 1.0, most=1))
        assert not third.granted
        assert third.taken == (1,)
    await shared.server.close()


async def test_a_request_larger_than_the_bucket_waits_for_a_full_one_and_leaves_a_debt() -> None:
    clock = Time()
    store = MemoryLimits(clock)
    assert (await store.take(ask("r1", 25.0))).levels == (-15.0,)
    clock.now_s += 20.0
    refused = await store.take(ask("r2", 25.0))
    assert refused.waits_s == (5.0,)
    clock.now_s += 5.0
    assert (await store.take(ask("r2", 25.0))).granted


async def test_what_was_taken_too_much_comes_back_and_no_more_than_fits() -> None:
    clock = Time()
    store = MemoryLimits(clock)
    wish = ask("r1", 8.0)
    await store.take(wish)
    store.settle(wish, (-5.0,))
    assert (await store.take(ask("r2", 0.0))).levels == (7.0,)
    store.settle(wish, (-500.0,))
    assert (await store.take(ask("r3", 0.0))).levels == (10.0,)


async def test_a_place_is_free_again_when_its_router_died_but_not_while_it_lives(server: Valkey) -> None:
    clock = Time()
    living, dead = (Shared(server, clock, prefix="died") for _ in range(2))
    await living.limits.take(ask("r1", most=2))
    await dead.limits.take(ask("r2", most=2))
    for _ in range(5):
        clock.now_s += LEASE_S / 4.0
        living.limits.renew()
        await living.server.settled()
    assert (await living.limits.take(ask("r3", most=3))).taken == (2,)
    for books in (living, dead):
        await books.server.close()


async def test_routers_share_their_limits(server: Valkey) -> None:
    clock = Time()
    one, other = (Shared(server, clock, prefix="routers") for _ in range(2))
    assert (await one.limits.take(ask("r1", 6.0))).granted
    assert not (await other.limits.take(ask("r2", 6.0))).granted
    await one.settle(ask("r1", 6.0), -6.0)
    assert (await other.limits.take(ask("r2", 6.0))).granted
    for books in (one, other):
        await books.server.close()


async def test_without_the_server_each_router_keeps_books_of_its_own() -> None:
    clock = Time()
    with valkey() as short_lived:
        shared = Shared(short_lived, clock, retry_s=2.0)
        granted = ask("r1", 6.0, most=1)
        assert (await shared.limits.take(granted)).granted
        short_lived.kill()
        assert (await shared.limits.take(ask("r2", 6.0))).granted
        assert not (await shared.limits.take(ask("r3", 6.0))).granted
        shared.limits.settle(ask("r2", 6.0), (-6.0,))
        assert (await shared.limits.take(ask("r4", 6.0))).granted
        assert b"steersman_limits_alone_total 3.0" in shared.metrics.page()
        assert b"steersman_shared_up 0.0" in shared.metrics.page()
        short_lived.close()
        short_lived.start()
        assert (await shared.limits.take(ask("r5", 0.0))).levels == (4.0,), "left alone for a while"
        clock.now_s += 2.5
        assert (await shared.limits.take(ask("r6", 0.0))).levels == (10.0,), "new books"
        assert b"steersman_shared_up 1.0" in shared.metrics.page()
        await shared.server.close()


async def test_a_server_that_hangs_costs_one_request_its_patience() -> None:
    clock = Time()
    with valkey() as frozen:
        shared = Shared(frozen, clock)
        shared.server._settings = SharedSettings(url=frozen.url, timeout_s=0.05)
        await shared.limits.take(ask("r0", 0.0))
        frozen.freeze()
        for i in range(50):
            assert (await shared.limits.take(ask(f"r{i}", 0.0))).granted
        assert b"steersman_shared_failures_total 1.0" in shared.metrics.page()
        await shared.server.close()
