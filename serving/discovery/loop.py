"""The control loop around any source: failures are counted, told once, and change nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from steersman.serving.discovery.dns import DnsWatch
from steersman.serving.discovery.files import FileWatch
from steersman.serving.discovery.kubernetes import KubernetesWatch
from steersman.serving.discovery.settings import DiscoverySettings
from steersman.serving.discovery.source import DiscoveryError, Tell
from steersman.serving.membership import Membership
from steersman.serving.metrics import RouterMetrics

logger = logging.getLogger("steersman.serving")


class Source(Protocol):
    """Looks for replicas and tells what it found."""

    @property
    def name(self) -> str:
        """For logs and metrics; from the configuration."""
        ...

    @property
    def retry_s(self) -> float:
        """Pause after a failure, in seconds."""
        ...

    async def look(self) -> float:
        """Look once, or watch until there is news; returns the pause until the next look, in seconds.

        Raises:
            DiscoveryError: it could not; whatever it told before stays true.
        """
        ...


def make_searches(
    settings: DiscoverySettings, membership: Membership, metrics: RouterMetrics
) -> list[DiscoveryLoop]:
    """A loop for each place where replicas are looked for.

    Raises:
        ConfigError: one needs a package that is not installed.
    """
    makers: list[Callable[[Tell], Source]] = [
        *(partial(FileWatch, one) for one in settings.files),
        *(partial(DnsWatch, one) for one in settings.dns),
        *(partial(KubernetesWatch, one) for one in settings.kubernetes),
    ]
    return [
        DiscoveryLoop(make(partial(membership.tell, f"source {i}")), metrics)
        for i, make in enumerate(makers)
    ]


class DiscoveryLoop:
    """Looks again and again."""

    def __init__(self, source: Source, metrics: RouterMetrics) -> None:
        self.name = f"discovery from {source.name}"
        self._source = source
        self._metrics = metrics
        self.problem = ""
        """Why the last look failed, in one line; empty if it did not."""

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Look once; returns the pause."""
        try:
            pause_s = await self._source.look()
        except DiscoveryError as error:
            self._metrics.discovery.labels(self._source.name, "failed").inc()
            if not self.problem:
                logger.warning("%s: %s; what was found before stays", self.name, error)
            self.problem = str(error)
            return self._source.retry_s
        if self.problem:
            logger.info("%s works again", self.name)
        self.problem = ""
        self._metrics.discovery.labels(self._source.name, "ok").inc()
        return pause_s
