"""Many clusters in lockstep, observed and dispatched together: the inner loop of training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steersman.env import layout as at
from steersman.env import lockstep
from steersman.env.batch_features import BatchFeatures
from steersman.env.cluster import Cluster
from steersman.env.unfinished import unfinished_costs
from steersman.predictors import ledger as L
from steersman.predictors.features import REPLICA_INDEX, REQUEST_FEATURES
from steersman.traces.schema import Observation

_RAW = np.array(
    [REPLICA_INDEX[name] for name in ("uncached_tokens", "raw_ttft_s", "raw_tpot_s", "match_fraction")]
)


class ClusterBatch:
    """B clusters, each at its own time, that take decisions together.

    Every cluster behaves exactly as it would alone. They may differ in everything; those with fewer
    replicas than the largest are padded with replicas that may not be chosen (mask False, features 0).

    Args:
        clusters: at least one; each is in one batch only, and untouched from outside meanwhile.
        most_replicas: of any cluster to come (`replace`); None: the largest of `clusters`.
    """

    def __init__(self, clusters: Sequence[Cluster], *, most_replicas: int | None = None) -> None:
        size = len(clusters)
        largest = max(len(cluster.replicas) for cluster in clusters)
        self._width = max(largest, most_replicas or 0)
        self._clusters = list(clusters)
        self._memories = np.zeros(size, dtype=np.int64)
        self._beliefs = np.zeros(size, dtype=np.int64)
        self._tables = np.zeros(size, dtype=np.int64)
        self._identities = np.zeros(size, dtype=np.int64)
        self._output_p50 = np.zeros(size, dtype=np.int64)
        self._rows = np.full(size, at.NONE, dtype=np.int64)
        self._state = np.zeros((size, self._width, L.STATE_WIDTH))
        self._now_s = np.zeros(size)
        self._features = BatchFeatures(size, self._width)
        self._sizes = np.zeros(size, dtype=np.int64)
        self._indices = np.arange(size)
        for index, cluster in enumerate(clusters):
            self.replace(index, cluster)

    def __len__(self) -> int:
        return len(self._clusters)

    @property
    def most_replicas(self) -> int:
        """Replicas in the batched observation, padding included."""
        return self._width

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """The clusters, to look at."""
        return tuple(self._clusters)

    @property
    def now_s(self) -> NDArray[np.float64]:
        """(B,): the clusters' clocks."""
        now_s = np.empty(len(self))
        lockstep.clocks(self._memories, now_s)
        return now_s

    @property
    def cost_accrued(self) -> NDArray[np.float64]:
        """(B,): see `Cluster.cost_accrued`."""
        total = np.empty(len(self))
        lockstep.costs(self._memories, total)
        return total

    @property
    def cost_foreseen(self) -> NDArray[np.float64]:
        """(B,): what has accrued, and what the work in flight will still cost (`unfinished.py`)."""
        total = self.cost_accrued
        unfinished_costs(self._memories, total)
        return total

    def replace(self, index: int, cluster: Cluster) -> None:
        """Put another cluster in this place.

        Raises:
            ValueError: it has more replicas than the batch has room for.
        """
        if len(cluster.replicas) > self._width:
            raise ValueError(f"{len(cluster.replicas)} replicas exceed most_replicas = {self._width}")
        self._clusters[index] = cluster
        self._memories[index] = cluster.memory.address
        self._beliefs[index] = 0 if cluster.belief is None else cluster.belief.memory.address
        self._tables[index] = cluster.table.features.ctypes.data
        self._identities[index] = cluster.table.identity.ctypes.data
        self._output_p50[index] = cluster.table.output_p50.ctypes.data
        self._sizes[index] = len(cluster.replicas)

    def next_requests(self, until_s: NDArray[np.float64] | None = None) -> NDArray[np.int64]:
        """Advance each to its next decision; its trace row, or -1 when all have arrived, (B,).

        Args:
            until_s: (B,), where to stop if nothing arrives by then (-1); see `Cluster.next_request`.
        """
        if until_s is None:
            until_s = np.full(len(self), np.inf)
        lockstep.next_requests(self._memories, self._rows, until_s)
        return self._rows.copy()

    def observe(self) -> Observation:
        """The observations of all pending requests, with a leading batch dimension.

        A cluster without one is shown idle-minded: request features 0 and no replica to choose.
        """
        size = len(self)
        idle = self._rows == at.NONE
        request = np.empty((size, len(REQUEST_FEATURES)), dtype=np.float32)
        match = np.empty((size, self._width))
        identity = np.empty((size, 2), dtype=np.int64)
        lockstep.gather(
            self._memories, self._beliefs, self._tables, self._state, self._now_s, request, match
        )
        lockstep.identities(self._memories, self._identities, identity)
        now_s = self._now_s.copy()
        asked = np.where(idle, 0, self._sizes)
        replicas, pool, mask = self._features.of(self._state, request, match, now_s, asked)
        return Observation(replicas, request, pool, mask, identity, now_s)

    def dispatch(self, choices: NDArray[np.integer], observation: Observation | None = None) -> None:
        """Send each pending request to a replica, or refuse it (-1); see `Cluster.dispatch`.

        Args:
            choices: (B,); of clusters without a pending request they are ignored.
            observation: of `observe` for these requests, if at hand.

        Raises:
            ValueError: a choice is not one of the cluster's replicas.
        """
        wanted = np.asarray(choices, dtype=np.int64)
        asked = self._rows != at.NONE
        if (asked & ((wanted < -1) | (wanted >= self._sizes))).any():
            raise ValueError(f"choices {wanted.tolist()} are not all replicas of their clusters")
        if observation is None:
            observation = self.observe()
        chosen = np.maximum(wanted, 0)[:, None]
        raw = observation.replicas[self._indices[:, None], chosen, _RAW].astype(np.float64)
        no_room = np.empty(len(self), dtype=np.bool_)
        lockstep.full(self._memories, no_room)
        for i in np.flatnonzero(no_room & asked).tolist():
            self._clusters[i].make_room()
            self._memories[i] = self._clusters[i].memory.address
        lockstep.dispatch_all(self._memories, self._beliefs, wanted, self._output_p50, raw)
        self._rows[:] = at.NONE

    def hold(self, index: int) -> None:
        """Put one cluster's pending request aside; see `Cluster.hold`."""
        self._clusters[index].hold()
        self._rows[index] = at.NONE

    def take_up(self, index: int, row: int) -> None:
        """A request that one cluster has held is its pending one; see `Cluster.take_up`."""
        self._clusters[index].take_up(row)
        self._rows[index] = row

    def refuse(self, index: int) -> None:
        """One cluster's pending request is sent nowhere."""
        self._clusters[index].dispatch(-1)
        self._rows[index] = at.NONE

    def withdraw(self, index: int) -> None:
        """The client of one cluster's pending request goes away; see `Cluster.withdraw`."""
        self._clusters[index].withdraw()
        self._rows[index] = at.NONE

    def finish(self, index: int, drain_s: float = 600.0) -> None:
        """Drain one cluster; see `Cluster.finish`."""
        self._clusters[index].finish(drain_s)
        self._rows[index] = at.NONE
