"""Ejecting replicas that answer much later than their peers (SPEC B9).

Raw times of different hardware cannot be compared, nor those of a long queue with those of a short one.
So each time to first token is divided by what the analytic model expected of that request on that
replica when it was sent; a healthy replica's median of that stands near its peers', whatever they are.
One that is `factor` times the peers' median is ejected for a while, then comes back by slow start, and
goes for twice as long if it is as slow again.

The routing policies follow a replica's speed by themselves, within a few dozen answers. This is for one
that is worse than slow.
"""

from __future__ import annotations

import logging
from statistics import median

from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet, Pool
from steersman.serving.replica import Replica
from steersman.serving.trust_settings import OutlierSettings

logger = logging.getLogger("steersman.serving")

STEP_S = 1.0
LEAST_PEERS = 2
"""Of two replicas nobody can tell which one is the exception."""


class OutlierWatch:
    """The control loop for the whole fleet."""

    name = "watch for outliers"

    def __init__(self, fleet: Fleet, settings: OutlierSettings, metrics: RouterMetrics) -> None:
        self.settings = settings
        """May be replaced at any time."""
        self._fleet = fleet
        self._metrics = metrics

    async def step(self, now_s: float) -> float:
        """Compare everybody with their peers once; returns the pause."""
        if self.settings.factor > 0.0:
            for pool in list(self._fleet.pools.values()):
                self._compare(pool, now_s)
        return STEP_S

    def _compare(self, pool: Pool, now_s: float) -> None:
        settings = self.settings
        if len(pool.replicas) <= LEAST_PEERS:
            return
        delays = {}
        for replica in pool.replicas:
            count, ratio, ttft_s = replica.standing.delays.recent(
                now_s, settings.window_s, settings.factor
            )
            if count >= settings.min_answers and not self._fleet.trust.is_out(replica, now_s):
                delays[replica] = (ratio, ttft_s)
        for replica, (ratio, ttft_s) in sorted(delays.items(), key=lambda item: -item[1][0]):
            peers = [other for one, (other, _) in delays.items() if one is not replica]
            if len(peers) < LEAST_PEERS or ttft_s < settings.least_ttft_s:
                continue
            usual = median(peers)
            if ratio >= settings.factor * usual and self._fleet.trust.may_eject(
                replica, self._fleet, now_s
            ):
                self._eject(replica, now_s, ratio / usual, ttft_s)

    def _eject(self, replica: Replica, now_s: float, times: float, ttft_s: float) -> None:
        settings, standing = self.settings, replica.standing
        if now_s - standing.ejected_until_s > settings.max_eject_s:
            standing.ejections = 0  # it had been well for long
        pause_s = min(settings.eject_s * 2.0 ** min(standing.ejections, 32), settings.max_eject_s)
        standing.ejections += 1
        standing.ejected_until_s = now_s + pause_s
        standing.warm_up(standing.ejected_until_s)
        standing.delays.clear()
        self._fleet.trust.doubt(replica)
        self._metrics.ejections.labels(replica.id, "outlier").inc()
        logger.warning(
            "replica %s is out for %.0f s: first tokens take %.1f times as long as its peers' (%.1f s)",
            replica.id,
            pause_s,
            times,
            ttft_s,
        )
