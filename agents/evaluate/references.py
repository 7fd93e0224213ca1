"""References that know what no router can know: how far is there to go?

`clairvoyant-lengths` is marginal cost with the true output lengths. `clairvoyant-lookahead` has them
too, forces every candidate in a copy of the true state, plays the true arrivals of the next seconds by
marginal cost, and charges what is unfinished then in closed form. Neither is a bound: marginal cost goes
on after them. They stand beside the policies, and nothing serves them.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policy import NO_CANDIDATE
from steersman.env.cluster import Cluster
from steersman.env.vector import ClusterBatch
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

LOOKAHEAD_S = 2.0
"""How far the true arrivals are played."""
_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]


class Reference(StrEnum):
    """Runs in an evaluation like a policy, under this name."""

    LENGTHS = "clairvoyant-lengths"
    LOOKAHEAD = "clairvoyant-lookahead"
    HINDSIGHT = "clairvoyant-hindsight"


def cheapest(seen: Observation) -> NDArray[np.int64]:
    """Marginal cost's choice for each cluster of a batch, (B,); the first of equals."""
    cost = np.where(seen.mask, seen.replicas[..., _MARGINAL_COST], np.inf)
    return np.asarray(cost.argmin(axis=-1), dtype=np.int64)


def look_ahead(clusters: Sequence[Cluster], *, horizon_s: float = LOOKAHEAD_S) -> NDArray[np.int64]:
    """The best candidate for the pending request of each cluster, (clusters,); -1 where nobody may.

    Args:
        clusters: each with a pending request and a replica that may be chosen; untouched.
        horizon_s: of simulated time, in which later arrivals go by marginal cost.
    """
    owners: list[int] = []
    forced: list[int] = []
    for i, cluster in enumerate(clusters):
        allowed = np.flatnonzero(cluster.observe().mask).tolist()
        owners += [i] * len(allowed)
        forced += allowed
    best = np.full(len(clusters), NO_CANDIDATE, dtype=np.int64)
    if not owners:
        return best
    batch = ClusterBatch([clusters[i].clone() for i in owners])
    until_s = batch.now_s + horizon_s
    batch.next_requests()  # the pending ones
    batch.dispatch(np.array(forced))
    while (batch.next_requests(until_s) >= 0).any():
        seen = batch.observe()
        batch.dispatch(cheapest(seen), seen)
    cost = batch.cost_foreseen
    least = np.full(len(clusters), np.inf)
    for owner, choice, total in zip(owners, forced, cost.tolist(), strict=True):
        if total < least[owner]:
            best[owner], least[owner] = choice, total
    return best
