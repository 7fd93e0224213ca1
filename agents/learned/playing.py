"""Whole episodes, played by a rule in lockstep: what they cost after they have settled."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.vector import ClusterBatch
from steersman.traces.schema import Observation

Choose = Callable[[Observation], NDArray[np.int64]]
"""From the observations of a batch of clusters to the choices, (b,)."""


def costs(clusters: Sequence[Cluster], choose: Choose, settling: float) -> NDArray[np.float64]:
    """Cost of each episode in units of J, all work drained, (clusters,). The clusters stay as they are.

    Args:
        settling: share of the arrivals, from the start, whose time is not counted.
    """
    batch = ClusterBatch([cluster.clone() for cluster in clusters])
    left = np.array([int(settling * len(cluster.trace)) for cluster in clusters])
    before = np.zeros(len(batch))
    while ((rows := batch.next_requests()) >= 0).any():
        left -= rows >= 0
        if (left == 0).any():
            before[left == 0] = batch.cost_accrued[left == 0]
            left[left == 0] = -1
        seen = batch.observe()
        batch.dispatch(choose(seen), seen)
    for i in range(len(batch)):
        batch.finish(i)
    return batch.cost_accrued - before
