"""The control loop around any source: failures are counted, told once, and change nothing."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol

from steersman.serving.discovery.dns import DnsWatch
from steersman.serving.discovery.files import FileWatch
from steersman.serving.discovery.kubernetes import KubernetesWatch
from steersman.serving.discovery.settings import DiscoverySettings
from steersman.serving.discovery.source import DiscoveryError, Tell
from steersman.serving.loops import Clock, run_loop, step_safely
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


class Searches:
    """A loop for each place where replicas are looked for; places may come and go.

    Raises:
        ConfigError: a source needs a package that is not installed.
    """

    def __init__(
        self,
        settings: DiscoverySettings,
        membership: Membership,
        metrics: RouterMetrics,
        clock: Clock,
    ) -> None:
        self._membership = membership
        self._metrics = metrics
        self._clock = clock
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self.loops: dict[str, DiscoveryLoop] = {}
        """By what is configured of the place."""
        for key, maker in _makers(settings).items():
            self._add(key, maker)
        membership.expect(self.loops)

    async def start(self) -> None:
        """Look everywhere once, and then again and again."""
        await asyncio.gather(*(self._start(key) for key in self.loops))

    async def close(self) -> None:
        """Look no more."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def replace(self, settings: DiscoverySettings) -> None:
        """Look in these places from now on. Where nothing changed, nothing happens; what the places
        that are gone had named stays until every new one has answered.

        Raises:
            ConfigError: as above, before anything has changed.
        """
        makers = _makers(settings)
        new = [key for key in makers if key not in self.loops]
        gone = [key for key in self.loops if key not in makers]
        for key in new:
            self._add(key, makers[key])
        for key in gone:
            del self.loops[key]
            if key in self._tasks:
                self._tasks.pop(key).cancel()
        self._membership.expect(self.loops)
        await asyncio.gather(*(self._start(key) for key in new))

    def _add(self, key: str, maker: Callable[[Tell], Source]) -> None:
        source = maker(partial(self._membership.tell, key))
        self.loops[key] = DiscoveryLoop(source, self._metrics)

    async def _start(self, key: str) -> None:
        loop = self.loops[key]
        pause_s = await step_safely(loop, self._clock)
        if self.loops.get(key) is not loop:
            return  # gone meanwhile
        self._tasks[key] = asyncio.create_task(run_loop(loop, self._clock, pause_s), name=loop.name)


def _makers(settings: DiscoverySettings) -> dict[str, Callable[[Tell], Source]]:
    return {
        **{f"file {one!r}": partial(FileWatch, one) for one in settings.files},
        **{f"dns {one!r}": partial(DnsWatch, one) for one in settings.dns},
        **{f"kubernetes {one!r}": partial(KubernetesWatch, one) for one in settings.kubernetes},
    }


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
