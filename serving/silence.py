"""Noticing replicas that have fallen silent, before the health checks do.

A replica that owes an easy answer and has sent nothing at all for `health.silence_s`, while most of the
others have, is suspected: new requests go elsewhere as long as there is an elsewhere, and it is checked
at once, again and again. A sign of life, whatever it is, ends the suspicion. `health.failures` failed
checks in a row take it out, and then what waits there without a first byte is tried elsewhere.

An overloaded replica is not silent: its streams go on. If all fall silent together, the network or this
router is at fault, and nobody is suspected.
"""

from __future__ import annotations

import asyncio
import logging

from steersman.serving.config import HealthSettings
from steersman.serving.health import HealthMonitor
from steersman.serving.loops import Clock
from steersman.serving.pool import Fleet
from steersman.serving.replica import Replica
from steersman.serving.upstream import Upstream
from steersman.traces.errors import BackendError

logger = logging.getLogger("steersman.serving")

STEP_S = 0.1
LEAST_CHECK_S = 0.25
"""Between two checks of a suspect that fail at once."""


class SilenceWatch:
    """The control loop for the whole fleet."""

    name = "watch for silence"

    def __init__(
        self,
        fleet: Fleet,
        monitor: HealthMonitor,
        upstream: Upstream,
        settings: HealthSettings,
        clock: Clock,
    ) -> None:
        self._fleet = fleet
        self._monitor = monitor
        self._upstream = upstream
        self.settings = settings
        """May be replaced at any time."""
        self._clock = clock
        self._checks: dict[Replica, asyncio.Task[None]] = {}

    async def step(self, now_s: float) -> float:
        """Look at everybody once; returns the pause."""
        for replica in self._fleet.replicas:
            suspect = self._is_suspect(replica, now_s)
            if suspect and replica not in self._fleet.trust.suspects:
                self._fleet.trust.suspects.add(replica)
                logger.warning("replica %s is suspected: it has fallen silent", replica.id)
            elif not suspect and replica in self._fleet.trust.suspects:
                self._fleet.trust.suspects.discard(replica)
                if not replica.health.healthy:
                    self._rescue(replica)
            if suspect and replica not in self._checks:
                task = asyncio.create_task(self._check(replica), name=f"check of silent {replica.id}")
                self._checks[replica] = task
        self._fleet.trust.suspects.intersection_update(self._fleet.replicas)
        return STEP_S

    async def close(self) -> None:
        """End the checks that are under way."""
        checks = list(self._checks.values())
        for check in checks:
            check.cancel()
        await asyncio.gather(*checks, return_exceptions=True)

    def _is_suspect(self, replica: Replica, now_s: float) -> bool:
        limit_s = self.settings.silence_s
        if limit_s <= 0.0 or not replica.health.healthy or replica.pulse.silence_s(now_s) < limit_s:
            return False
        others = [r for r in self._fleet.replicas if r is not replica and r.health.healthy]
        alive = sum(now_s - other.pulse.heard_s < limit_s for other in others)
        return bool(others) and 2 * alive >= len(others)

    async def _check(self, replica: Replica) -> None:
        settings = self.settings
        began_s = self._clock()
        path = replica.settings.health_path or "/v1/models"
        limit_s = min(settings.timeout_s, settings.silence_s)
        try:
            await self._upstream.get(replica, path, timeout_s=limit_s)
        except BackendError as error:
            # Something may have come meanwhile: then it is slow, and the regular checks judge it.
            if replica in self._fleet.trust.suspects and replica.pulse.heard_s < began_s:
                self._monitor.failed(replica, f"silent, and {error}")
            await asyncio.sleep(max(LEAST_CHECK_S - (self._clock() - began_s), 0.0))
        finally:
            del self._checks[replica]

    def _rescue(self, replica: Replica) -> None:
        if replica.waiting:
            count = len(replica.waiting)
            logger.warning("%d requests that wait for replica %s are tried elsewhere", count, replica.id)
        for leave in list(replica.waiting):
            leave()
