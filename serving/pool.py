"""The replicas, what is known of them, and which of them form the pool of a model.

Knowledge is one matrix for the whole fleet, a row per replica (`predictors/ledger.py`), because a
replica that serves two models has one queue. A decision works on a snapshot: a copy of its pool's rows.
Everything here runs on the event loop's thread.

Replicas come and go while requests are under way. A row belongs to its replica until the last request
there has ended, and only then to another one; what is decided meanwhile is decided on new pools.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env.engine_metrics import EngineMetrics
from steersman.predictors import ledger as L
from steersman.predictors.prefix_index import PrefixIndex
from steersman.serving.backend_settings import BackendSettings, TlsSettings
from steersman.serving.config import HealthSettings
from steersman.serving.replica import Replica, is_secure, tls_context
from steersman.serving.trust import Trust
from steersman.serving.trust_settings import BreakerSettings, OutlierSettings, SlowStartSettings
from steersman.serving.workers.board import ACCOUNT, Seat
from steersman.traces.errors import ConfigError
from steersman.traces.schema import ClusterSnapshot, HardwareProfile, ReplicaState


@dataclass(frozen=True, slots=True)
class Pool:
    """The replicas of one model."""

    model: str
    replicas: tuple[Replica, ...]
    rows: NDArray[np.intp]
    """Their rows in the fleet's state."""
    ids: tuple[str, ...]
    objectives_s: dict[int, tuple[float, float]] = field(default_factory=dict, compare=False, repr=False)
    """TTFT and TPOT objectives by prompt tokens, as far as they have been asked for."""


MOST_REPLICAS = 4096
"""Rows of the matrix, made at once (1 MiB): views of a row stay valid while replicas come and go."""


class Fleet:
    """All replicas.

    Args:
        backends: those there are from the start.
        profiles: of each of them.
        health: when a replica is out.
        block_tokens: tokens per prefix block of the requests' hashes.
        environment: where API keys are.
        aliases: further names of models.
        breaker: when a replica's circuit opens.
        trust: who is avoided for what.
        seat: where other workers see what this one has in flight; None if it is the only one.

    Raises:
        ConfigError: see `Replica`.
    """

    def __init__(
        self,
        backends: Sequence[BackendSettings],
        profiles: Sequence[HardwareProfile],
        health: HealthSettings,
        *,
        block_tokens: int,
        environment: Mapping[str, str] | None = None,
        aliases: Mapping[str, str] | None = None,
        breaker: BreakerSettings | None = None,
        trust: Trust | None = None,
        seat: Seat | None = None,
    ) -> None:
        self._environment = os.environ if environment is None else environment
        self._health = health
        self._breaker = breaker or BreakerSettings()
        self.trust = trust or Trust(OutlierSettings(), SlowStartSettings())
        self._contexts: dict[TlsSettings, ssl.SSLContext] = {}
        self._seat = seat
        self._matrix = np.zeros((MOST_REPLICAS, L.STATE_WIDTH)) if seat is None else seat.matrix
        self._used = 0
        self._free: list[int] = []
        self.aliases = dict(aliases or {})
        self.stand_ins: Mapping[str, Sequence[str]] = {}
        """Models that answer in place of a model, in this order."""
        self.former_models: set[str] = set()
        """Models that some replica served which is gone."""
        self.settled = True
        """Whether all places where replicas are looked for have been looked at."""
        self.eased: Callable[[], None] = _nobody_waits
        """Told whenever a replica may have room that had none."""
        self.block_tokens = block_tokens
        self.prefixes = PrefixIndex([])
        self.replicas: tuple[Replica, ...] = ()
        self.pools: dict[str, Pool] = {}
        for backend, profile in zip(backends, profiles, strict=True):
            self.add(backend, profile)

    @property
    def state(self) -> NDArray[np.float64]:
        """(rows, STATE_WIDTH): what is known of each replica; those that left are not well."""
        return self._matrix[: self._used]

    def add(self, backend: BackendSettings, profile: HardwareProfile) -> Replica:
        """A new replica, taken to be well until its first check.

        Raises:
            ConfigError: see `Replica`; or there are too many.
        """
        index = self._free[-1] if self._free else self._used
        if index >= MOST_REPLICAS:
            raise ConfigError(f"backend '{backend.replica_id}': more than {MOST_REPLICAS} replicas")
        replica = Replica(
            index,
            backend,
            profile,
            self._health,
            self._breaker,
            self._environment,
            self._contexts,
        )
        row = self._matrix[index]
        row[:] = L.new_row(profile)
        row[L.BASE_WEIGHT] *= backend.weight
        blocks = int(row[L.KV_CAPACITY_TOKENS]) // self.block_tokens
        if self._free:
            self._free.pop()
            self._resize(index, blocks)
        else:
            self._used += 1
            self.prefixes.add_replica(blocks)
        if self._seat is not None:
            self._seat.name(index, replica.id)
        self.replicas = (*self.replicas, replica)
        self._form_pools()
        return replica

    def apply(
        self, health: HealthSettings, breaker: BreakerSettings, aliases: Mapping[str, str]
    ) -> None:
        """From now on these count, for every replica."""
        self._health, self._breaker, self.aliases = health, breaker, dict(aliases)
        for replica in self.replicas:
            replica.health.expect(health.failures, health.successes)
            replica.standing.breaker.settings = breaker

    def read_certificates(
        self, backends: Iterable[BackendSettings]
    ) -> dict[TlsSettings, ssl.SSLContext]:
        """What `take_certificates` takes, read anew: of these backends, and of those that are here.
        Takes a moment, and changes nothing.

        Raises:
            ConfigError: some cannot be used.
        """
        secure = [b for b in (*backends, *(r.settings for r in self.replicas)) if is_secure(b)]
        return {backend.tls: tls_context(backend) for backend in secure}

    def take_certificates(self, contexts: Mapping[TlsSettings, ssl.SSLContext]) -> None:
        """New connections use these; those that are open stay."""
        self._contexts.update(contexts)
        for replica in self.replicas:
            if replica.tls is not None:
                replica.tls = self._contexts[replica.settings.tls]

    def drain(self, replica: Replica, *, draining: bool = True) -> None:
        """It gets no new requests, or gets them again."""
        self.state[replica.index, L.DRAINING] = float(draining)

    def inherit(self, replica: Replica, former: Replica) -> None:
        """It is the server that another one was: its health, its models, its last scrape, its speed."""
        replica.health = former.health
        replica.standing = former.standing
        self.trust.doubt(replica)
        self.set_healthy(replica, former.health.healthy)
        self.set_models(replica, former.cards.values())
        for columns in (slice(L.SCRAPED_AT_S, L.INFLIGHT), slice(L.MEAN_TTFT_S, L.HEALTHY)):
            self.state[replica.index, columns] = self.state[former.index, columns]

    def is_idle(self, replica: Replica) -> bool:
        """Whether none of our requests is there."""
        return bool(self.state[replica.index, L.INFLIGHT] < 0.5)

    def remove(self, replica: Replica) -> None:
        """It is gone. Only once it is idle: its row is another one's next."""
        self.replicas = tuple(other for other in self.replicas if other is not replica)
        self.state[replica.index, L.HEALTHY] = 0.0
        self._forget(replica)
        self.trust.forget(replica)
        if self._seat is not None:
            self._seat.name(replica.index, "")
        self._free.append(replica.index)
        before = set(self.pools)
        self._form_pools()
        self.former_models |= before - set(self.pools)

    @property
    def all_known(self) -> bool:
        """Whether the models of every backend are known, and every backend."""
        return self.settled and bool(self.replicas) and all(r.models for r in self.replicas)

    def set_models(self, replica: Replica, cards: Iterable[dict[str, Any]]) -> None:
        """The backend told which models it serves."""
        models = replica.take_cards(cards)
        if models != replica.models:
            replica.models = models
            self._form_pools()

    def snapshot(self, pool: Pool, now_s: float) -> ClusterSnapshot:
        """What is known of a pool at this moment; later events do not change it."""
        rows = self._matrix.take(pool.rows, axis=0)
        if self._seat is not None:
            rows[:, ACCOUNT] += self._seat.others(pool.ids)
        return ClusterSnapshot(now_s, pool.model, pool.ids, rows)

    def hope(self, pool: Pool, rows: NDArray[np.float64], excluded: NDArray[np.bool_]) -> bool:
        """Nobody is well who may be used: those count as well who pass their checks. They are out
        because requests failed, and that may be over. To fail is no worse than to refuse.

        Args:
            pool: the replicas.
            rows: (n, STATE_WIDTH), a snapshot of them, changed in place.
            excluded: (n,), those that may not be used.

        Returns:
            Whether there are any.
        """
        hoped = [
            i
            for i in np.flatnonzero(~excluded & (rows[:, L.DRAINING] == 0))
            if pool.replicas[i].health.checks_pass
        ]
        rows[hoped, L.HEALTHY] = 1.0
        return bool(hoped)

    def match_tokens(self, pool: Pool, hashes: Sequence[int]) -> NDArray[np.float64]:
        """Prompt tokens each replica of a pool is believed to hold in its cache, (n,)."""
        if not hashes:
            return np.zeros(len(pool.rows))
        blocks = self.prefixes.match(hashes).take(pool.rows)
        return np.multiply(blocks, self.block_tokens, dtype=np.float64)

    def believe(self, replica: Replica, hashes: Sequence[int], now_s: float) -> None:
        """A prompt with these block hashes was sent there, by the clock of the snapshots."""
        self.prefixes.insert(replica.index, hashes, now_s)
        self._note_cache(replica.index)

    def avoided(self, pool: Pool, tried: NDArray[np.bool_], now_s: float) -> NDArray[np.bool_]:
        """(n,): replicas that a request may not use: those it has tried, those that asked to be left in
        peace, and those that `Trust` avoids while somebody else can take it."""
        resting = [i for i, replica in enumerate(pool.replicas) if replica.resting_until_s > now_s]
        avoided = tried
        if resting:
            avoided = tried.copy()
            avoided[resting] = True
        if self.trust.is_unclouded:
            return avoided
        return self.trust.add_avoided(avoided, pool, self.state[pool.rows], now_s)

    def set_healthy(self, replica: Replica, healthy: bool) -> None:
        """A replica is taken out or brought back; one that went down forgets its prefix cache."""
        L.on_health(self.state, replica.index, healthy)
        self.eased()
        if not healthy:
            self._forget(replica)

    def on_scrape(self, replica: Replica, metrics: EngineMetrics, now_s: float) -> None:
        """A scrape succeeded. What the engine says of its memory beats the profile."""
        row = self.state[replica.index]
        L.on_scrape(
            row,
            now_s,
            metrics.running,
            metrics.waiting,
            metrics.kv_usage,
            L.UNTOLD if metrics.prefix_queries is None else metrics.prefix_queries,
            L.UNTOLD if metrics.prefix_hits is None else metrics.prefix_hits,
        )
        replica.adapters = metrics.adapters
        self.eased()
        capacity = metrics.kv_capacity_tokens
        if capacity > 0.0 and capacity != row[L.KV_CAPACITY_TOKENS]:
            row[L.KV_CAPACITY_TOKENS] = capacity
            self._resize(replica.index, int(capacity) // self.block_tokens)

    def _forget(self, replica: Replica) -> None:
        """Its prefix cache is empty."""
        self.prefixes.forget(replica.index)
        self._note_cache(replica.index)

    def _resize(self, index: int, blocks: int) -> None:
        """A replica's prefix cache holds so many blocks."""
        self.prefixes.resize(index, blocks)
        self._note_cache(index)

    def _note_cache(self, index: int) -> None:
        self._matrix[index, L.CACHE_OLDEST_S] = self.prefixes.oldest_s(index)

    def describe(self, replica: Replica, now_s: float) -> ReplicaState:
        """One replica for people; in flight is what all workers have there."""
        row = self.state[replica.index]
        inflight = float(row[L.INFLIGHT])
        if self._seat is not None:
            inflight += float(self._seat.others((replica.id,))[0, 0])
        return ReplicaState(
            replica_id=replica.id,
            running=float(row[L.RUNNING]),
            waiting=float(row[L.WAITING]),
            kv_usage=float(row[L.KV_USAGE]),
            inflight=int(inflight),
            age_s=float(now_s - row[L.SCRAPED_AT_S]),
            healthy=bool(row[L.HEALTHY]),
            draining=bool(row[L.DRAINING]),
        )

    def _form_pools(self) -> None:
        models = dict.fromkeys(model for replica in self.replicas for model in replica.models)
        pools = {}
        for model in models:
            members = tuple(replica for replica in self.replicas if model in replica.models)
            rows = np.array([replica.index for replica in members], dtype=np.intp)
            pools[model] = Pool(model, members, rows, tuple(replica.id for replica in members))
        self.pools = pools
        self.eased()


def _nobody_waits() -> None:
    """There is no queue."""
