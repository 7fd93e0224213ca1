"""Scrapes fill the state, fail without harm, and slow down where they fail."""

from __future__ import annotations

import contextlib
import random
from collections.abc import AsyncIterator

import pytest

from steersman.predictors import ledger as L
from steersman.serving.config import LimitSettings, ScrapeSettings, TimeoutSettings
from steersman.serving.parts import Parts, build_parts
from steersman.serving.scraper import Scraper
from steersman.serving.upstream import Upstream
from tests.serving.backends import Backend, backends, completion, whole
from tests.serving.harness import settings_for


@contextlib.asynccontextmanager
async def scraping() -> AsyncIterator[Rig]:
    """A backend, and a scraper with an open session."""
    async with (
        backends(whole(completion())) as fleet,
        Upstream(TimeoutSettings(), LimitSettings()) as upstream,
    ):
        yield Rig(fleet, upstream)


class Rig:
    """One backend and its scraper, with the clock in the test's hands."""

    def __init__(self, fleet: list[Backend], upstream: Upstream) -> None:
        self.now_s = 0.0
        self.backend = fleet[0]
        self.parts: Parts = build_parts(settings_for(fleet))
        self.scraper = Scraper(
            self.parts.fleet.replicas[0],
            self.parts.fleet,
            upstream,
            ScrapeSettings(interval_s=0.2, jitter=0.1, max_backoff_s=5.0, timeout_s=1.0),
            self.parts.metrics,
            lambda: self.now_s,
            random.Random(0),
        )

    async def step(self, now_s: float) -> float:
        self.now_s = now_s
        return await self.scraper.step(now_s)

    def failures(self) -> float:
        sample = self.parts.metrics.registry.get_sample_value(
            "steersman_scrape_failures_total", {"replica": "b0"}
        )
        return sample or 0.0


async def test_a_scrape_fills_the_row_and_starts_the_account_anew() -> None:
    async with scraping() as rig:
        row = rig.parts.fleet.state[0]
        L.on_dispatch(row, 100, 100, 50)
        rig.backend.running = 4
        pause_s = await rig.step(10.0)
        assert 0.18 <= pause_s <= 0.22
        assert row[L.SCRAPED_AT_S] == 10.0
        assert (row[L.RUNNING], row[L.WAITING]) == (4.0, 1.0)
        assert row[L.SINCE_SCRAPE] == 0.0
        assert row[L.INFLIGHT] == 1.0
        assert rig.failures() == 0.0


async def test_prefixes_that_the_engine_does_not_find_are_not_believed_in() -> None:
    async with scraping() as rig:
        row = rig.parts.fleet.state[0]
        for number in range(1, 200):
            L.on_lookup(row, 1000.0, 900.0)
            rig.backend.metrics = (
                b"vllm:num_requests_running 1\n"
                b"vllm:prefix_cache_queries_total %d\n"
                b"vllm:prefix_cache_hits_total %d\n"
            ) % (1000 * number, 90 * number)
            await rig.step(float(number))
        assert 0.05 < row[L.CACHE_TRUST] < 0.2
        rig.parts.metrics.watch(rig.parts.fleet, lambda: rig.now_s)
        shown = rig.parts.metrics.registry.get_sample_value(
            "steersman_replica_cache_trust", {"replica": "b0"}
        )
        assert shown == row[L.CACHE_TRUST]


async def test_what_the_engine_says_of_its_memory_beats_the_profile() -> None:
    async with scraping() as rig:
        rig.backend.metrics = (
            b'vllm:num_requests_running{engine="0"} 1\n'
            b'vllm:cache_config_info{block_size="16",num_gpu_blocks="100"} 1\n'
        )
        await rig.step(1.0)
        assert rig.parts.fleet.state[0, L.KV_CAPACITY_TOKENS] == 1600.0


@pytest.mark.parametrize("page", [b"", b"<html>", b"vllm:num_requests_running lots\n"])
async def test_a_failed_scrape_lets_the_state_age_and_takes_nobody_out(page: bytes) -> None:
    async with scraping() as rig:
        row = rig.parts.fleet.state[0]
        rig.backend.running = 4
        await rig.step(1.0)
        rig.backend.metrics = page
        pauses = [await rig.step(2.0 + i) for i in range(8)]
        assert row[L.SCRAPED_AT_S] == 1.0
        assert row[L.RUNNING] == 4.0
        assert row[L.HEALTHY] == 1.0
        assert rig.failures() == 8.0
        assert pauses[0] == pytest.approx(0.4, rel=0.11)
        assert pauses == sorted(pauses)
        assert pauses[-1] == 5.0
        rig.backend.metrics = None
        assert await rig.step(60.0) < 0.3
        assert row[L.SCRAPED_AT_S] == 60.0


async def test_an_unreachable_backend_is_a_failed_scrape() -> None:
    async with scraping() as rig:
        await rig.backend.stop()
        await rig.step(1.0)
        assert rig.failures() == 1.0
