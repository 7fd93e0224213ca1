from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.evaluate.contestants import contestants
from steersman.agents.evaluate.references import Reference, look_ahead
from steersman.agents.evaluate.run import Protocol, evaluate
from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile
from steersman.env.scenario import load_scenario
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ReplicaSpec
from tests.env.worlds import request, trace_of

FAST, SLOW = (ReplicaSpec(name, load_profile(f"{name}-llama-3.1-8b")) for name in ("h100", "l40s"))


def waiting_cluster(replicas: list[ReplicaSpec], outputs: list[int]) -> Cluster:
    """All requests but the last sent to the first replica; the last waits for its decision."""
    trace = trace_of(*(request(i, 0.001 * i, 300, output) for i, output in enumerate(outputs)))
    cluster = Cluster(replicas, trace)
    for _ in outputs[:-1]:
        cluster.next_request()
        cluster.dispatch(0)
    cluster.next_request()
    return cluster


def test_it_takes_the_fast_replica_and_leaves_the_cluster_alone() -> None:
    cluster = waiting_cluster([SLOW, FAST], [400])
    before = cluster.memory.copy()
    assert look_ahead([cluster]).tolist() == [1]
    assert cluster.pending == 0
    np.testing.assert_array_equal(cluster.memory.buffer, before.buffer)


def test_it_sees_the_queue_that_no_metric_shows_yet() -> None:
    # Before the first scrape the router counts requests alike; the truth is that all are long.
    cluster = waiting_cluster([FAST, FAST], [2000] * 200 + [100])
    assert look_ahead([cluster]).tolist() == [1]


def test_clusters_are_decided_together_as_alone() -> None:
    worlds = [
        waiting_cluster([SLOW, FAST], [400]),
        waiting_cluster([FAST, SLOW, FAST], [500] * 80 + [100]),
        waiting_cluster([FAST, FAST], [2000] * 50 + [100]),
    ]
    together = look_ahead(worlds).tolist()
    assert together == [int(look_ahead([world])[0]) for world in worlds]


def test_who_is_down_is_not_a_candidate() -> None:
    cluster = waiting_cluster([SLOW, FAST], [400])
    cluster.set_health(1, False)
    assert look_ahead([cluster]).tolist() == [0]
    cluster.set_health(0, False)
    assert look_ahead([cluster]).tolist() == [-1]


def test_references_run_beside_policies_on_the_same_arrivals() -> None:
    scenario = replace(load_scenario("tiny"), saturation_rps=12.0)
    protocol = Protocol(loads=(0.9,), seeds=(0, 1), requests=60, window_s=0.0, warmup_s=4.0, tail_s=2.0)
    names = ["marginal-cost", *Reference]
    table = evaluate(contestants(names), [scenario], protocol)
    assert table.policies == tuple(names)
    cell = table.cells[0]
    counts = [table.by_seed(name, cell, "requests").tolist() for name in table.policies]
    assert all(count == counts[0] for count in counts)
    assert table.mean("clairvoyant-lookahead", cell) < 1.05 * table.mean("marginal-cost", cell)
    again = evaluate(contestants(["clairvoyant-lookahead"]), [scenario], protocol)
    assert again.runs == tuple(r for r in table.runs if r.policy == "clairvoyant-lookahead")
    # It knows everything that they know, and what follows too.
    assert table.best(cell, names) == "clairvoyant-hindsight"
    assert table.mean("clairvoyant-hindsight", cell) < 0.97 * table.mean("clairvoyant-lengths", cell)


def test_references_are_not_policies_to_serve() -> None:
    from steersman.agents.policies import make_policy

    with pytest.raises(ConfigError, match="unknown policy"):
        make_policy("clairvoyant-lookahead", seed=0)
