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
    """Mean TTFT of the slowest requests, of all classes alike; NaN where none counted."""


def warm_up(clusters: Sequence[Cluster], choose: Choose, until_s: NDArray[np.float64]) -> list[Cluster]:
    """Copies of them, each played up to its own time; the clusters themselves stay as they are.

    Args:
        until_s: (clusters,).
    """
    batch = ClusterBatch([cluster.clone() for cluster in clusters])
    _run(batch, choose, until_s)
    return list(batch.clusters)


def play(clusters: Sequence[Cluster], choose: Choose, counted_s: NDArray[np.float64]) -> Played:
    """Play them to the end; the clusters themselves stay as they are.

    Args:
        counted_s: (clusters,), when it begins to count.
    """
    batch = ClusterBatch([cluster.clone() for cluster in clusters])
    _run(batch, choose, counted_s)
    before = batch.cost_accrued
    _run(batch, choose, np.full(len(batch), np.inf))
    for i in range(len(batch)):
        batch.finish(i, DRAIN_S)
    tails = [_tail_s(*pair) for pair in zip(batch.clusters, counted_s, strict=True)]
    return Played(batch.cost_accrued - before, np.array(tails))


def _run(batch: ClusterBatch, choose: Choose, until_s: NDArray[np.float64]) -> None:
    while (batch.next_requests(until_s) >= 0).any():
        seen = batch.observe()
        batch.dispatch(choose(seen), seen)


def _tail_s(cluster: Cluster, settled_s: float) -> float:
    outcomes = cluster.outcomes()
    ttft_s = np.nan_to_num(outcomes.ttft_s[outcomes.arrival_s >= settled_s], nan=DRAIN_S)
    if not len(ttft_s):
        return math.nan
    slowest = np.sort(ttft_s)[-math.ceil(SLOWEST * len(ttft_s)) :]
    return float(slowest.mean())
