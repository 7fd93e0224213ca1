"""What every replica gets, whenever it comes: its hardware profile and its control loops."""

from __future__ import annotations

import random
from collections.abc import Iterable

from steersman.env.profiles import load_profile, with_limits
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import RouterSettings
from steersman.serving.health import HealthCheck, HealthMonitor
from steersman.serving.loops import Clock, ControlLoop
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet
from steersman.serving.replica import Replica
from steersman.serving.scraper import Scraper
from steersman.serving.upstream import Upstream
from steersman.traces.schema import HardwareProfile


def profile_of(backend: BackendSettings, default: str) -> HardwareProfile:
    """A backend's profile, with the limits its engine was started with.

    Raises:
        ConfigError: there is no such profile.
    """
    return with_limits(
        load_profile(backend.profile or default),
        max_num_seqs=backend.max_num_seqs,
        max_batched_tokens=backend.max_batched_tokens,
    )


class ReplicaParts:
    """Makes them by the settings there are now."""

    def __init__(
        self,
        settings: RouterSettings,
        fleet: Fleet,
        monitor: HealthMonitor,
        upstream: Upstream,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._settings = settings
        self._fleet = fleet
        self._monitor = monitor
        self._upstream = upstream
        self._metrics = metrics
        self._clock = clock

    def apply(self, settings: RouterSettings, loops: Iterable[ControlLoop]) -> None:
        """From now on these count; `loops` are all that have been made."""
        self._settings = settings
        for loop in loops:
            if isinstance(loop, HealthCheck):
                loop.settings = settings.health
            elif isinstance(loop, Scraper):
                loop.settings = settings.scrape

    def profile(self, backend: BackendSettings) -> HardwareProfile:
        """Its profile.

        Raises:
            ConfigError: there is no such profile.
        """
        return profile_of(backend, self._settings.profile)

    def loops(self, replica: Replica) -> list[ControlLoop]:
        """Its control loops."""
        settings, fleet = self._settings, self._fleet
        loops: list[ControlLoop] = [
            HealthCheck(replica, fleet, self._monitor, self._upstream, settings.health)
        ]
        if replica.settings.metrics_path:
            rng = random.Random(f"{settings.policy.seed} {replica.id}")
            loops.append(
                Scraper(replica, fleet, self._upstream, settings.scrape, self._metrics, self._clock, rng)
            )
        return loops
