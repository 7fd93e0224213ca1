"""Whole episodes, played by a rule in lockstep: their cost and their tail, once they have settled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.vector import ClusterBatch
from steersman.traces.schema import Observation

Choose = Callable[[Observation], NDArray[np.int64]]
"""From the observations of a batch of clusters to the choices, (b,)."""


SLOWEST = 0.02
"""Share of the requests whose mean TTFT is the tail: about p99, with less noise than one quantile."""
DRAIN_S = 600.0
"""Time for the work in flight at the end; a request without a first token by then counts as this."""


class Played(NamedTuple):
    """Of each episode, (clusters,)."""

    cost: NDArray[np.float64]
    """In units of J, all work drained."""
    tail_s: NDArray[np.float64]
    """Mean TTFT of the slowest requests, of all classes alike."""


def play(clusters: Sequence[Cluster], choose: Choose, settling: float) -> Played:
    """Play them to the end; the clusters themselves stay as they are.

    Args:
        settling: share of the arrivals, from the start, that is not counted.
    """
    batch = ClusterBatch([cluster.clone() for cluster in clusters])
    left = np.array([int(settling * len(cluster.trace)) for cluster in clusters])
    before, settled_s = np.zeros(len(batch)), np.zeros(len(batch))
    while ((rows := batch.next_requests()) >= 0).any():
        left -= rows >= 0
        if (left == 0).any():
            before[left == 0] = batch.cost_accrued[left == 0]
            settled_s[left == 0] = batch.now_s[left == 0]
            left[left == 0] = -1
        seen = batch.observe()
        batch.dispatch(choose(seen), seen)
    for i in range(len(batch)):
        batch.finish(i, DRAIN_S)
    tails = [_tail_s(*pair) for pair in zip(batch.clusters, settled_s, strict=True)]
    return Played(batch.cost_accrued - before, np.array(tails))


def _tail_s(cluster: Cluster, settled_s: float) -> float:
    outcomes = cluster.outcomes()
    ttft_s = np.nan_to_num(outcomes.ttft_s[outcomes.arrival_s >= settled_s], nan=DRAIN_S)
    slowest = np.sort(ttft_s)[-math.ceil(SLOWEST * len(ttft_s)) :]
    return float(slowest.mean())
