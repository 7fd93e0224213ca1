from __future__ import annotations

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile
from steersman.env.vector import ClusterBatch
from steersman.traces.scenario import ReplicaSpec
from tests.env.worlds import request, trace_of

REPLICA = [ReplicaSpec("a", load_profile("a100-llama-3.1-8b"))]


def played(until_s: float, *requests: tuple[float, int, int]) -> Cluster:
    """A replica at a time, with everything that has arrived dispatched to it; nothing comes later."""
    trace = trace_of(*(request(i, at, p, o) for i, (at, p, o) in enumerate(requests)))
    cluster = Cluster(REPLICA, trace)
    while cluster.next_request(until_s) is not None:
        cluster.dispatch(0)
    return cluster


def foreseen(cluster: Cluster) -> float:
    return float(ClusterBatch([cluster.clone()]).cost_foreseen[0])


def drained(cluster: Cluster) -> float:
    twin = cluster.clone()
    twin.finish(1e5)
    return twin.cost_accrued


@pytest.mark.parametrize("until_s", [0.0, 0.05, 2.0, 8.0])
def test_a_steady_batch_costs_what_it_will_cost(until_s: float) -> None:
    # Equal requests that start and end together are in the steady state until then.
    cluster = played(until_s, *[(0.0, 64, 1000)] * 40)
    assert foreseen(cluster) == pytest.approx(drained(cluster), rel=0.1)


def test_nothing_in_flight_costs_nothing_more() -> None:
    cluster = played(100.0, (0.0, 10, 10))
    assert foreseen(cluster) == pytest.approx(cluster.cost_accrued)
    assert cluster.cost_accrued == pytest.approx(drained(cluster))


def test_a_mixed_batch_is_foreseen_too() -> None:
    rng = np.random.default_rng(0)
    requests = [(float(i) * 0.02, 500, int(rng.integers(50, 900))) for i in range(200)]
    cluster = played(4.0, *requests)
    # If others keep coming, who stays does not speed up as the batch empties.
    assert foreseen(cluster) == pytest.approx(drained(cluster), rel=0.3)


def test_waiting_for_a_slot_is_foreseen_with_its_missed_objectives() -> None:
    cluster = played(0.5, *[(0.0, 200, 400)] * 600)
    assert foreseen(cluster) == pytest.approx(drained(cluster), rel=0.35)


def test_looking_changes_nothing() -> None:
    cluster = played(1.0, *[(0.0, 64, 300)] * 20)
    before = cluster.clone()
    ClusterBatch([cluster]).cost_foreseen  # noqa: B018
    assert drained(cluster) == pytest.approx(drained(before), rel=1e-9)
