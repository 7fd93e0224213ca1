"""Which replicas are well (SPEC D1): checks every few seconds, and what requests meet on their way.

A replica that was never seen well is believed at its first check, either way. From then on it goes out
after `failures` failures in a row, of checks or of requests, and comes back after `successes` checks
in a row, by slow start. What requests meet moves its circuit breaker too. Client errors say nothing
about a replica.
"""

from __future__ import annotations

import logging
import math
from typing import TYPE_CHECKING, Any

import orjson

from steersman.serving.config import HealthSettings
from steersman.serving.loops import Clock
from steersman.serving.upstream import Upstream
from steersman.traces.errors import BackendError

if TYPE_CHECKING:
    from steersman.serving.metrics import RouterMetrics
    from steersman.serving.pool import Fleet
    from steersman.serving.replica import Replica

logger = logging.getLogger("steersman.serving")


class HealthState:
    """The counting, without any I/O."""

    def __init__(self, failures: int, successes: int) -> None:
        self.healthy = True
        self.checks_pass = False
        """Whether the last check did: one that is out all the same is out by its requests alone."""
        self.expect(failures, successes)
        self._failures = 0
        self._successes = 0
        self._proven = False

    def expect(self, failures: int, successes: int) -> None:
        """From now on so many failures take it out, and so many checks bring it back."""
        self._limit = failures
        self._needed = successes

    def check_passed(self) -> bool:
        """A check succeeded; returns whether the replica is well now."""
        self._failures = 0
        self.checks_pass = True
        self._successes += 1
        if not self._proven or self._successes >= self._needed:
            self.healthy = True
        self._proven = True
        return self.healthy

    def request_passed(self) -> None:
        """A request succeeded: the failures before it do not count. It does not bring a replica back."""
        self._failures = 0

    def failed(self) -> bool:
        """A check or a request failed; returns whether the replica is well now."""
        self._successes = 0
        self._failures += 1
        if not self._proven or self._failures >= self._limit:
            self.healthy = False
        self._proven = True
        return self.healthy


class HealthMonitor:
    """Counts for the whole fleet and moves replicas out and in."""

    def __init__(self, fleet: Fleet, metrics: RouterMetrics, clock: Clock) -> None:
        self._fleet = fleet
        self._metrics = metrics
        self._clock = clock

    def check_passed(self, replica: Replica) -> None:
        """Of `HealthCheck`."""
        before = replica.health.healthy
        self._move(replica, before, replica.health.check_passed(), "checks pass")

    def request_passed(self, replica: Replica) -> None:
        """Of the proxy."""
        replica.health.request_passed()
        now_s = self._clock()
        if replica.standing.breaker.passed(now_s):
            self._warm_up(replica, now_s)
            logger.warning("replica %s: its circuit closes, the probes were answered", replica.id)

    def request_failed(self, replica: Replica, reason: str) -> None:
        """Of `Blame`: the replica is at fault. `reason` is one line."""
        now_s, breaker = self._clock(), replica.standing.breaker
        may_open = self._fleet.trust.may_eject(replica, self._fleet, now_s)
        if breaker.failed(now_s, may_open=may_open):
            self._fleet.trust.doubt(replica)
            self._metrics.ejections.labels(replica.id, "breaker").inc()
            logger.warning("replica %s: its circuit opens: %s", replica.id, reason)
        self._failed(replica, reason)

    def failed(self, replica: Replica, reason: str) -> None:
        """Of checks. `reason` is one line."""
        replica.health.checks_pass = False
        self._failed(replica, reason)

    def _failed(self, replica: Replica, reason: str) -> None:
        before = replica.health.healthy
        self._metrics.replica_failures.labels(replica.id).inc()
        self._move(replica, before, replica.health.failed(), reason)

    def _move(self, replica: Replica, before: bool, after: bool, reason: str) -> None:
        self._fleet.set_healthy(replica, after)
        if before != after:
            state = "back" if after else "out"
            logger.warning("replica %s is %s: %s", replica.id, state, reason)
            if after:
                self._warm_up(replica, self._clock())

    def _warm_up(self, replica: Replica, now_s: float) -> None:
        replica.standing.warm_up(now_s)
        self._fleet.trust.doubt(replica)


class HealthCheck:
    """The control loop of one replica."""

    def __init__(
        self,
        replica: Replica,
        fleet: Fleet,
        monitor: HealthMonitor,
        upstream: Upstream,
        settings: HealthSettings,
    ) -> None:
        self.name = f"health check of {replica.id}"
        self._replica = replica
        self._fleet = fleet
        self._monitor = monitor
        self._upstream = upstream
        self.settings = settings
        """May be replaced at any time."""
        self._asked_at_s = -math.inf

    async def step(self, now_s: float) -> float:
        """Check once; returns the interval."""
        replica = self._replica
        was_healthy = replica.health.healthy
        try:
            if replica.settings.health_path:
                await self._get(replica.settings.health_path)
            due = now_s - self._asked_at_s >= self.settings.models_interval_s
            if not replica.cards or not was_healthy or due:
                await self._ask_models()
                self._asked_at_s = now_s
        except BackendError as error:
            self._monitor.failed(replica, str(error))
        else:
            self._monitor.check_passed(replica)
        return self.settings.interval_s

    async def _ask_models(self) -> None:
        """Which models it serves; a backend whose models are configured need not say."""
        try:
            self._fleet.set_models(self._replica, read_cards(await self._get("/v1/models")))
        except BackendError:
            if not self._replica.settings.models:
                raise
        if not self._replica.models:
            raise BackendError(f"{self._replica.url}/v1/models: serves no model; is it still loading?")

    async def _get(self, path: str) -> bytes:
        return await self._upstream.get(self._replica, path, timeout_s=self.settings.timeout_s)


def read_cards(body: bytes) -> list[dict[str, Any]]:
    """The entries of an OpenAI model list.

    Raises:
        BackendError: it is not one.
    """
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        raise BackendError(
            "/v1/models does not answer JSON; is it an OpenAI-compatible server?"
        ) from None
    entries = parsed.get("data") if isinstance(parsed, dict) else None
    if not isinstance(entries, list):
        raise BackendError("/v1/models answers no list of models; is it an OpenAI-compatible server?")
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]
