"""Which replicas there are: told by the configuration and by discovery, carried out in the fleet.

A replica that is no longer named drains: it gets no new requests, finishes what it has, and is then
forgotten with its loops and its metrics. One that is new is checked before it gets its first request.
Nothing here ever ends a request.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from steersman.serving.backend_settings import BackendSettings
from steersman.serving.loops import Clock, ControlLoop, run_loop, step_safely
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet
from steersman.serving.replica import Replica
from steersman.traces.errors import ConfigError
from steersman.traces.schema import HardwareProfile

logger = logging.getLogger("steersman.serving")

CONFIGURED = "configuration"
REAP_INTERVAL_S = 0.25
"""Between two looks for replicas that have drained."""


class Membership:
    """An asynchronous context manager: inside, the loops of every replica run.

    Args:
        fleet: where replicas are put and taken out.
        loops_of: makes the control loops of a replica.
        profile_of: reads the hardware profile of a backend; may raise ConfigError.
        metrics: forget the replicas that left.
        clock: seconds.
        sources: how many will `tell`, beside the configuration.
    """

    name = "membership"

    def __init__(
        self,
        fleet: Fleet,
        loops_of: Callable[[Replica], list[ControlLoop]],
        profile_of: Callable[[BackendSettings], HardwareProfile],
        metrics: RouterMetrics,
        clock: Clock,
        *,
        sources: int = 0,
    ) -> None:
        self._fleet = fleet
        self._loops_of = loops_of
        self._profile_of = profile_of
        self._metrics = metrics
        self._clock = clock
        self._told = {CONFIGURED: tuple(replica.settings for replica in fleet.replicas)}
        self._expected = sources + len(self._told)
        fleet.settled = sources == 0
        self._draining: set[Replica] = set()
        self._tasks: dict[Replica, list[asyncio.Task[None]]] = {}
        self._running = False
        self._first_steps: dict[Replica, asyncio.Future[Any]] = {}
        self.loops: dict[Replica, list[ControlLoop]] = {}
        for replica in fleet.replicas:
            self.loops[replica] = loops_of(replica)

    async def __aenter__(self) -> Self:
        self._running = True
        for replica in self._fleet.replicas:
            self._start(replica)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._running = False
        tasks = [task for tasks in self._tasks.values() for task in tasks]
        self._tasks.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def checked(self) -> None:
        """Return when every replica there is now has been looked at once."""
        await asyncio.gather(*self._first_steps.values())

    def tell(self, source: str, backends: Sequence[BackendSettings]) -> None:
        """These are all replicas that a source names now; what other sources name stays."""
        self._told[source] = tuple(backends)
        self._fleet.settled = len(self._told) >= self._expected
        wanted = self._wanted()
        for replica in self._fleet.replicas:
            named = wanted.get(replica.id) == replica.settings
            if named and replica in self._draining:
                self._draining.discard(replica)
                self._fleet.drain(replica, draining=False)
                logger.info("replica %s is named again", replica.id)
            elif not named and replica not in self._draining:
                self._draining.add(replica)
                self._fleet.drain(replica)
                logger.info("replica %s drains: it is no longer named", replica.id)
        here = {replica.id for replica in self._fleet.replicas if replica not in self._draining}
        for name, backend in wanted.items():
            if name not in here:
                self._add(backend)

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Forget those that have drained; returns the pause until the next look."""
        for replica in [r for r in self._draining if self._fleet.is_idle(r)]:
            self._draining.discard(replica)
            del self.loops[replica]
            self._first_steps.pop(replica, None)
            for task in self._tasks.pop(replica, ()):
                task.cancel()
            self._fleet.remove(replica)
            if replica.id not in {other.id for other in self._fleet.replicas}:
                self._metrics.forget(replica.id)
            logger.info("replica %s is gone", replica.id)
        return REAP_INTERVAL_S

    def hold(self, replica_id: str, *, hold: bool) -> bool:
        """An operator drains a replica by its id, or gives it requests again; False if there is none."""
        replicas = [replica for replica in self._fleet.replicas if replica.id == replica_id]
        for replica in replicas:
            if replica not in self._draining:
                self._fleet.drain(replica, draining=hold)
            logger.warning("replica %s %s", replica_id, "drains" if hold else "gets requests again")
        return bool(replicas)

    def _wanted(self) -> dict[str, BackendSettings]:
        """By id; of two that share an id or a URL the first counts."""
        wanted: dict[str, BackendSettings] = {}
        urls: set[str] = set()
        for backends in self._told.values():
            for backend in backends:
                if backend.replica_id not in wanted and backend.url not in urls:
                    wanted[backend.replica_id] = backend
                    urls.add(backend.url)
        return wanted

    def _add(self, backend: BackendSettings) -> None:
        try:
            replica = self._fleet.add(backend, self._profile_of(backend))
        except ConfigError as error:
            # One replica that cannot be used must not keep the others out.
            logger.warning("replica %s cannot be used: %s", backend.replica_id, error)
            return
        self.loops[replica] = self._loops_of(replica)
        same = next((r for r in self._draining if r.url == replica.url), None)
        if same is not None:  # the same server with other settings: what is known of it stays true
            self._fleet.inherit(replica, same)
            logger.info("replica %s has other settings", replica.id)
        else:
            replica.health.healthy = False
            self._fleet.set_healthy(replica, healthy=False)
            logger.info("replica %s is new: %s", replica.id, replica.url)
        self._start(replica)

    def _start(self, replica: Replica) -> None:
        if not self._running:
            return
        begun = [asyncio.get_running_loop().create_future() for _ in self.loops[replica]]
        self._first_steps[replica] = asyncio.gather(*begun)
        self._tasks[replica] = [
            asyncio.create_task(self._run(loop, first), name=loop.name)
            for loop, first in zip(self.loops[replica], begun, strict=True)
        ]

    async def _run(self, loop: ControlLoop, first: asyncio.Future[None]) -> None:
        try:
            pause_s = await step_safely(loop, self._clock)
        finally:
            first.set_result(None)
        await run_loop(loop, self._clock, pause_s)
