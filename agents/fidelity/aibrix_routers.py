"""How AIBrix's set-ups chose a replica, from the defaults of what they were made of.

- **connections** (`naive`, a Kubernetes service): the service picks a replica at random for a new
  connection, not for a request. The benchmark's client (the openai package, on httpx) keeps connections,
  sends a request on the first idle one, opens a new one if all are busy, and drops those that were idle
  for five seconds.
- **least-of-two** (`aibrix_naive`): without a routing strategy AIBrix leaves the choice to Envoy
  Gateway, whose default takes the less loaded of two replicas at random.
- **prefix**: AIBrix v0.3.0's `prefix-cache`. If in-flight counts differ by more than 8, the least
  loaded. Else the longest match among the replicas whose count is at most a standard deviation above
  the mean; without any, the least loaded. Ties: the less loaded, then at random.
- **session**: a user's replica is always the same.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from steersman.env.cluster import Cluster
from steersman.predictors import ledger as L

IMBALANCE = 8
KEEPALIVE_S = 5.0

Router = Callable[[Cluster], int]


def make_router(name: str, rng: np.random.Generator) -> Router:
    """The choice of a set-up, for the request that is pending."""
    if name == "connections":
        return Connections(rng)
    if name == "least-of-two":
        return lambda cluster: _least_of_two(cluster, rng)
    if name == "session":
        homes: dict[int, int] = {}
        return lambda cluster: homes.setdefault(
            int(cluster.trace.tenant[cluster.pending or 0]), len(homes) % len(cluster.replicas)
        )
    return lambda cluster: _by_prefix(cluster, rng)


@dataclass(slots=True)
class _Connection:
    replica: int
    row: int
    """The request it carries or carried last."""


class Connections:
    """A client's pool of kept connections, each to one replica."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._pool: list[_Connection] = []

    def __call__(self, cluster: Cluster) -> int:
        """The replica at the other end of the connection that the pending request goes out on."""
        now_s, row = cluster.now_s, cluster.pending or 0
        ended_s = cluster.trace.arrival_s + cluster.outcomes().e2e_s
        free_s = [float(ended_s[connection.row]) for connection in self._pool]  # NaN: still busy
        kept = [
            (connection, at_s)
            for connection, at_s in zip(self._pool, free_s, strict=True)
            if not at_s < now_s - KEEPALIVE_S
        ]
        self._pool = [connection for connection, _ in kept]
        for connection, at_s in kept:
            if at_s <= now_s:
                connection.row = row
                return connection.replica
        replica = int(self._rng.integers(len(cluster.replicas)))
        self._pool.append(_Connection(replica, row))
        return replica


def _least_of_two(cluster: Cluster, rng: np.random.Generator) -> int:
    inflight = cluster.state[:, L.INFLIGHT]
    one, other = (int(choice) for choice in rng.integers(len(inflight), size=2))
    return one if inflight[one] <= inflight[other] else other


def _by_prefix(cluster: Cluster, rng: np.random.Generator) -> int:
    inflight = cluster.state[:, L.INFLIGHT]
    match = cluster.match_tokens()
    able = (match > 0) & (inflight <= inflight.mean() + inflight.std())
    candidates = np.arange(len(inflight))
    if able.any() and np.ptp(inflight) <= IMBALANCE:
        candidates = np.flatnonzero(able & (match == match[able].max()))
    least = candidates[inflight[candidates] == inflight[candidates].min()]
    return int(rng.choice(least))
