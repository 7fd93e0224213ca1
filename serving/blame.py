"""Whose fault it is when a request fails on a replica: the replica's, or the request's own.

A request that every replica fails on (a bug it triggers, a body that crashes the engine) must not take
the replicas out one after the other, nor be carried from one to the next until none is left. So:

- Where the request never arrived (no connection), the replica is at fault at once.
- Otherwise the verdict waits. An answer elsewhere proves the request sound, and those it failed on are
  at fault. If it failed on several and nobody answered, the request is, and no replica is charged.
- One body is charged to one replica only once, until somebody answers it: a client that insists proves
  nothing new.
- A body that has broken the connections of several replicas, one after the other, is left in peace for a
  while: refused, not tried.

Bodies are remembered by a hash, for a bounded time and in bounded number.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from hashlib import blake2b

from steersman.serving.config import RetrySettings
from steersman.serving.errors import ApiError, Code
from steersman.serving.exchange import Exchange
from steersman.serving.health import HealthMonitor
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Pool
from steersman.serving.relay import TryElsewhere
from steersman.serving.replica import Replica

MOST_REMEMBERED = 4096


@dataclass(slots=True)
class Record:
    """What came of one body, since it was last answered."""

    failed_on: set[str] = field(default_factory=set)
    """Ids of replicas."""
    broke: set[str] = field(default_factory=set)
    """Those of them whose connection broke."""
    rests_until_s: float = 0.0


class Blame:
    """The judge; one for the whole router."""

    def __init__(
        self, monitor: HealthMonitor, settings: RetrySettings, metrics: RouterMetrics, clock: Clock
    ) -> None:
        self._monitor = monitor
        self.settings = settings
        """May be replaced at any time."""
        self._metrics = metrics
        self._clock = clock
        self._records: OrderedDict[bytes, Record] = OrderedDict()

    def check(self, exchange: Exchange) -> None:
        """Before the first attempt, and before each further one.

        Raises:
            ApiError: this body has broken as many replicas as it may, and rests.
        """
        if not self._records:
            return
        record = self._records.get(_digest(exchange))
        if record is None or len(record.broke) < self._limit(exchange.prepared.pool):
            return
        rest_s = record.rests_until_s - self._clock()
        if rest_s > 0.0:
            raise ApiError(
                503,
                Code.REQUEST_BREAKS_REPLICAS,
                f"the connections of {len(record.broke)} replicas broke on this request, one after the "
                "other; it is not tried for a while; change it, or find out why",
                retry_after_s=rest_s,
            )

    def failed(self, exchange: Exchange, replica: Replica, failure: TryElsewhere) -> None:
        """An attempt failed, and nothing has gone to the client yet."""
        if not failure.fault:
            return
        if not failure.arrived:
            self._monitor.request_failed(replica, failure.fault)
        elif failure.doubtful:
            exchange.doubts.append((replica, failure.fault))
        elif self._remember(exchange, replica, broke=failure.broke):
            exchange.faults.append((replica, failure.fault))

    def failed_midway(self, exchange: Exchange, replica: Replica, fault: str, *, broke: bool) -> None:
        """An answer broke off, or took too long: nobody else will be asked."""
        if self._remember(exchange, replica, broke=broke):
            self._monitor.request_failed(replica, fault)

    def answered(self, exchange: Exchange) -> None:
        """A replica answers: the request is sound, and those it failed on are at fault."""
        for replica, fault in (*exchange.faults, *exchange.doubts):
            self._monitor.request_failed(replica, fault)
        exchange.faults.clear()
        exchange.doubts.clear()
        if self._records:
            self._records.pop(_digest(exchange), None)

    def unanswered(self, exchange: Exchange) -> None:
        """Nobody answered."""
        if len(exchange.faults) > 1:
            self._metrics.blamed_requests.inc()
        else:
            for replica, fault in exchange.faults:
                self._monitor.request_failed(replica, fault)
        exchange.faults.clear()

    def _limit(self, pool: Pool) -> float:
        """Replicas that one body may break: never the last one of several, but two of two, since a
        replica that just died is by far the more common reason."""
        most = self.settings.most_broken
        return max(min(most, len(pool.ids) - 1), 2) if most else float("inf")

    def _remember(self, exchange: Exchange, replica: Replica, *, broke: bool) -> bool:
        """Whether this body had not failed on this replica before."""
        key = _digest(exchange)
        record = self._records.pop(key, None) or Record()
        self._records[key] = record
        if len(self._records) > MOST_REMEMBERED:
            self._records.popitem(last=False)
        new = replica.id not in record.failed_on
        record.failed_on.add(replica.id)
        if broke:
            record.broke.add(replica.id)
            record.rests_until_s = self._clock() + self.settings.broken_rest_s
        return new


def _digest(exchange: Exchange) -> bytes:
    if not exchange.digest:
        exchange.digest = blake2b(exchange.intake.body, digest_size=16).digest()
    return exchange.digest
