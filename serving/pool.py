"""The replicas, what is known of them, and which of them form the pool of a model.

Knowledge is one matrix for the whole fleet, a row per replica (`predictors/ledger.py`), because a
replica that serves two models has one queue. A decision works on a snapshot: a copy of its pool's rows.
Everything here runs on the event loop's thread.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env.engine_metrics import EngineMetrics
from steersman.predictors import ledger as L
from steersman.predictors.prefix_index import PrefixIndex
from steersman.serving.config import BackendSettings, HealthSettings
from steersman.serving.health import HealthState
from steersman.traces.errors import ConfigError
from steersman.traces.schema import ClusterSnapshot, HardwareProfile, ReplicaState


class Replica:
    """One backend: where it is, what it serves, how it is."""

    def __init__(
        self,
        index: int,
        settings: BackendSettings,
        profile: HardwareProfile,
        health: HealthSettings,
        environment: Mapping[str, str],
    ) -> None:
        self.index = index
        """Its row in the fleet's state."""
        self.settings = settings
        self.id = settings.replica_id
        self.url = settings.url
        self.profile = profile
        self.health = HealthState(health.failures, health.successes)
        self.models = settings.models
        self.cards: dict[str, dict[str, Any]] = {}
        """What the backend says of each of its models, if it was asked."""
        self.resting_until_s = 0.0
        """It asked, with Retry-After, to be left in peace until then."""
        self.authorization = _authorization(settings, environment)

    def __repr__(self) -> str:
        """Without the key."""
        return f"Replica({self.id!r}, {self.url!r})"


@dataclass(frozen=True, slots=True)
class Pool:
    """The replicas of one model."""

    model: str
    replicas: tuple[Replica, ...]
    rows: NDArray[np.intp]
    """Their rows in the fleet's state."""
    ids: tuple[str, ...]


class Fleet:
    """All replicas.

    Args:
        backends: at least one.
        profiles: of each backend.
        health: when a replica is out.
        block_tokens: tokens per prefix block of the requests' hashes.
        environment: where API keys are.

    Raises:
        ConfigError: a variable that should hold an API key is not set.
    """

    def __init__(
        self,
        backends: Sequence[BackendSettings],
        profiles: Sequence[HardwareProfile],
        health: HealthSettings,
        *,
        block_tokens: int,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        variables = os.environ if environment is None else environment
        self.replicas = tuple(
            Replica(i, backend, profile, health, variables)
            for i, (backend, profile) in enumerate(zip(backends, profiles, strict=True))
        )
        self.state = np.stack([L.new_row(replica.profile) for replica in self.replicas])
        for row, backend in zip(self.state, backends, strict=True):
            row[L.BASE_WEIGHT] *= backend.weight
        self.block_tokens = block_tokens
        self.prefixes = PrefixIndex([self._blocks(replica) for replica in self.replicas])
        self.pools: dict[str, Pool] = {}
        self._form_pools()

    @property
    def all_known(self) -> bool:
        """Whether the models of every backend are known."""
        return all(replica.models for replica in self.replicas)

    def set_models(self, replica: Replica, cards: Iterable[dict[str, Any]]) -> None:
        """The backend told which models it serves."""
        replica.cards = {str(card["id"]): card for card in cards}
        models = replica.settings.models or tuple(replica.cards)
        if models != replica.models:
            replica.models = models
            self._form_pools()

    def snapshot(self, pool: Pool, now_s: float) -> ClusterSnapshot:
        """What is known of a pool at this moment; later events do not change it."""
        return ClusterSnapshot(now_s, pool.model, pool.ids, self.state[pool.rows])

    def match_tokens(self, pool: Pool, hashes: Sequence[int]) -> NDArray[np.float64]:
        """Prompt tokens each replica of a pool is believed to hold in its cache, (n,)."""
        if not hashes:
            return np.zeros(len(pool.rows))
        matched: NDArray[np.float64] = self.prefixes.match(hashes)[pool.rows].astype(np.float64)
        return matched * self.block_tokens

    def resting(self, pool: Pool, now_s: float) -> NDArray[np.bool_]:
        """(n,): True where a replica asked to be left in peace."""
        return np.array([replica.resting_until_s > now_s for replica in pool.replicas])

    def set_healthy(self, replica: Replica, healthy: bool) -> None:
        """A replica is taken out or brought back; one that went down forgets its prefix cache."""
        L.on_health(self.state, replica.index, healthy)
        if not healthy:
            self.prefixes.forget(replica.index)

    def on_scrape(self, replica: Replica, metrics: EngineMetrics, now_s: float) -> None:
        """A scrape succeeded. What the engine says of its memory beats the profile."""
        row = self.state[replica.index]
        L.on_scrape(row, now_s, metrics.running, metrics.waiting, metrics.kv_usage)
        capacity = metrics.kv_capacity_tokens
        if capacity > 0.0 and capacity != row[L.KV_CAPACITY_TOKENS]:
            row[L.KV_CAPACITY_TOKENS] = capacity
            self.prefixes.resize(replica.index, int(capacity) // self.block_tokens)

    def describe(self, replica: Replica, now_s: float) -> ReplicaState:
        """One replica for people."""
        row = self.state[replica.index]
        return ReplicaState(
            replica_id=replica.id,
            running=float(row[L.RUNNING]),
            waiting=float(row[L.WAITING]),
            kv_usage=float(row[L.KV_USAGE]),
            inflight=int(row[L.INFLIGHT]),
            age_s=float(now_s - row[L.SCRAPED_AT_S]),
            healthy=bool(row[L.HEALTHY]),
            draining=bool(row[L.DRAINING]),
        )

    def _blocks(self, replica: Replica) -> int:
        return int(self.state[replica.index, L.KV_CAPACITY_TOKENS]) // self.block_tokens

    def _form_pools(self) -> None:
        models = dict.fromkeys(model for replica in self.replicas for model in replica.models)
        pools = {}
        for model in models:
            members = tuple(replica for replica in self.replicas if model in replica.models)
            rows = np.array([replica.index for replica in members], dtype=np.intp)
            pools[model] = Pool(model, members, rows, tuple(replica.id for replica in members))
        self.pools = pools


def _authorization(settings: BackendSettings, environment: Mapping[str, str]) -> str:
    if not settings.api_key_env:
        return ""
    key = environment.get(settings.api_key_env, "").strip()
    if not key:
        raise ConfigError(
            f"backend '{settings.replica_id}': environment variable '{settings.api_key_env}' "
            "(api_key_env) is not set; set it to the backend's API key"
        )
    if not key.isascii() or not key.isprintable():
        raise ConfigError(
            f"backend '{settings.replica_id}': the key in '{settings.api_key_env}' (api_key_env) "
            "has characters that cannot be in a header; check it"
        )
    return f"Bearer {key}"
