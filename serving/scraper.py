"""Reading the engines' own metrics.

A scrape that fails leaves what is known to age, and the age is a feature; it never takes a replica out
(stale metrics must not empty a pool). Repeated failures slow the scraping of that replica down.
"""

from __future__ import annotations

import logging
import random
from typing import TYPE_CHECKING

from steersman.env.engine_metrics import parse_metrics
from steersman.serving.config import ScrapeSettings
from steersman.serving.loops import Clock
from steersman.serving.upstream import Upstream
from steersman.traces.errors import BackendError

if TYPE_CHECKING:
    from steersman.serving.metrics import RouterMetrics
    from steersman.serving.pool import Fleet
    from steersman.serving.replica import Replica

logger = logging.getLogger("steersman.serving")


class Scraper:
    """The control loop of one replica."""

    def __init__(
        self,
        replica: Replica,
        fleet: Fleet,
        upstream: Upstream,
        settings: ScrapeSettings,
        metrics: RouterMetrics,
        clock: Clock,
        rng: random.Random,
    ) -> None:
        self.name = f"scraper of {replica.id}"
        self._replica = replica
        self._fleet = fleet
        self._upstream = upstream
        self.settings = settings
        """May be replaced at any time."""
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._failures = 0

    async def step(self, now_s: float) -> float:
        """Scrape once; returns the pause, counted so that scrapes start an interval apart."""
        replica = self._replica
        try:
            page = await self._upstream.get(
                replica, replica.settings.metrics_path, timeout_s=self.settings.timeout_s
            )
            self._fleet.on_scrape(replica, parse_metrics(page), now_s)
        except BackendError as error:
            self._metrics.scrape_failures.labels(replica.id).inc()
            if self._failures == 0 and replica.health.healthy:
                logger.warning("metrics of %s cannot be read: %s", replica.id, error)
            self._failures += 1
        else:
            self._failures = 0
        return max(self._interval_s() - (self._clock() - now_s), 0.0)

    def _interval_s(self) -> float:
        settings = self.settings
        jittered = settings.interval_s * (1.0 + settings.jitter * self._rng.uniform(-1.0, 1.0))
        backed_off = jittered * 2.0 ** min(self._failures, 16)
        return min(backed_off, max(settings.max_backoff_s, jittered))
