"""What must hold of the cluster model whatever the configuration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.outcomes import STATUSES, OutcomeTable
from steersman.env.vector import ClusterBatch
from steersman.traces.schema import Status
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of, worlds

RUNS = settings(max_examples=60, deadline=None)


def same(a: OutcomeTable, b: OutcomeTable) -> bool:
    """Bit for bit."""
    columns = ("status", "replica", "arrival_s", "ttft_s", "tpot_s", "e2e_s", "cached_tokens")
    return all(np.array_equal(getattr(a, c), getattr(b, c), equal_nan=True) for c in columns[1:]) and (
        np.array_equal(a.status, b.status)
    )


@RUNS
@given(worlds(), st.randoms(use_true_random=False))
def test_every_request_ends_once_and_nothing_is_lost(cluster: Cluster, random: object) -> None:
    del random
    last_s = 0.0
    arrived = 0
    while (row := cluster.next_request()) is not None:
        assert cluster.now_s >= last_s
        last_s = cluster.now_s
        arrived += 1
        check_memory(cluster.memory)
        cluster.dispatch(row % len(cluster.replicas))
        check_memory(cluster.memory)
    assert arrived == len(cluster.trace)
    cluster.finish(drain_s=1e9)
    check_memory(cluster.memory)
    outcomes = cluster.outcomes()
    ok = outcomes.ok
    rejected = outcomes.status == STATUSES.index(Status.REJECTED)
    assert np.all(ok | rejected)
    limit = cluster.memory.replicas["token_limit"][outcomes.replica]
    assert np.array_equal(rejected, cluster.trace.input_tokens + cluster.trace.output_tokens > limit)
    assert np.array_equal(outcomes.output_tokens[ok], cluster.trace.output_tokens[ok])
    assert np.all(outcomes.cached_tokens[ok] < cluster.trace.input_tokens[ok])
    assert np.all(outcomes.ttft_s[ok] > 0)
    assert np.all(outcomes.e2e_s[ok] >= outcomes.ttft_s[ok])
    assert not cluster.memory.replicas["held_blocks"].any()
    load = cluster.state[:, 17:24]
    assert np.allclose(load[:, :5], 0.0, atol=1e-6), "the router's account is empty too"


@RUNS
@given(worlds())
def test_the_accrued_cost_is_the_sum_of_the_requests_costs(cluster: Cluster) -> None:
    play(cluster)
    o = cluster.outcomes()
    latency = o.ttft_s / o.ttft_slo_s + o.tpot_s / o.tpot_slo_s + 2.0 * ~o.slo_met
    each = o.weight * np.where(o.ok, latency, 42.0)
    assert cluster.cost_accrued == np.float64(cluster.cost_accrued)
    assert np.isclose(cluster.cost_accrued, each.sum(), rtol=1e-9)


@RUNS
@given(worlds())
def test_cost_never_falls(cluster: Cluster) -> None:
    last = 0.0
    while (row := cluster.next_request()) is not None:
        assert cluster.cost_accrued >= last - 1e-12
        last = cluster.cost_accrued
        cluster.dispatch(row % len(cluster.replicas))


@RUNS
@given(worlds(), st.integers(0, 20))
def test_a_clone_goes_on_as_the_original_does(cluster: Cluster, when: int) -> None:
    for _ in range(when):
        row = cluster.next_request()
        if row is None:
            break
        cluster.dispatch(row % len(cluster.replicas))
    twin = cluster.clone()
    play(twin)
    untouched = cluster.clone()
    play(cluster)
    play(untouched)
    assert same(cluster.outcomes(), twin.outcomes())
    assert same(cluster.outcomes(), untouched.outcomes())
    assert np.array_equal(cluster.state, twin.state)
    assert cluster.cost_accrued == twin.cost_accrued


@RUNS
@given(worlds())
def test_a_batch_is_its_clusters_one_by_one(cluster: Cluster) -> None:
    other = Cluster(
        specs(small_profile()), trace_of(*(request(i, 0.1 * i, 50, 20) for i in range(10))), seed=3
    )
    alone, other_alone = cluster.clone(), other.clone()
    batch = ClusterBatch([cluster, other])
    sizes = np.array([len(cluster.replicas), 1])
    while (rows := batch.next_requests()).max() >= 0:
        observation = batch.observe()
        if rows[0] >= 0:
            assert alone.next_request() == rows[0]
            single = alone.observe()
            assert np.array_equal(single.replicas, observation.replicas[0, : sizes[0]])
            assert np.array_equal(single.request, observation.request[0])
            assert np.array_equal(single.pool, observation.pool[0])
            assert np.array_equal(single.mask, observation.mask[0, : sizes[0]])
            alone.dispatch(int(rows[0] % sizes[0]))
        batch.dispatch(rows % sizes, observation)
    play(other_alone)
    alone.finish(1e9)
    for index in (0, 1):
        batch.finish(index, 1e9)
    assert same(alone.outcomes(), cluster.outcomes())
    assert same(other_alone.outcomes(), other.outcomes())
    assert np.array_equal(alone.state, cluster.state)
    assert np.array_equal(batch.cost_accrued, [alone.cost_accrued, other_alone.cost_accrued])


@RUNS
@given(worlds(), st.integers(0, 30), st.data())
def test_replicas_may_break_and_come_back(cluster: Cluster, when: int, data: st.DataObject) -> None:
    count = 0
    while (row := cluster.next_request()) is not None:
        if count == when:
            cluster.set_health(0, False)
            check_memory(cluster.memory)
            assert not cluster.observe().mask[0]
        if count == when + 5:
            cluster.set_health(0, True)
        cluster.dispatch(data.draw(st.integers(-1, len(cluster.replicas) - 1)))
        check_memory(cluster.memory)
        count += 1
    cluster.finish(1e9)
    check_memory(cluster.memory)
    assert not np.any(cluster.outcomes().status == STATUSES.index(Status.UNFINISHED))
    del row


@RUNS
@given(worlds(), st.floats(0.0, 0.5))
def test_draining_ends_on_time(cluster: Cluster, drain_s: float) -> None:
    while (row := cluster.next_request()) is not None:
        cluster.dispatch(row % len(cluster.replicas))
    stop_s = cluster.now_s + drain_s
    cluster.finish(drain_s)
    check_memory(cluster.memory)
    o = cluster.outcomes()
    assert cluster.now_s <= stop_s
    assert np.all((o.arrival_s + o.e2e_s)[o.ok] <= stop_s + 1e-9)
    assert not cluster.memory.replicas["inflight"].any()


@RUNS
@given(
    st.lists(st.tuples(st.sampled_from([0.0, 0.01, 0.2]), st.integers(0, 1)), min_size=2, max_size=30),
    st.integers(1, 6),
    st.booleans(),
)
def test_equal_requests_of_a_class_are_served_in_order(
    arrivals: list[tuple[float, int]], most: int, stepped: bool
) -> None:
    at_s = np.cumsum([gap for gap, _ in arrivals])
    trace = trace_of(
        *(request(i, float(at_s[i]), 60, 10, priority=p) for i, (_, p) in enumerate(arrivals))
    )
    cluster = Cluster(specs(small_profile(max_num_seqs=most)), trace, stepped=stepped)
    play(cluster)
    o = cluster.outcomes()
    for priority in (0, 1):
        ends = cluster.memory.outcomes["end_s"][o.priority == priority]
        assert np.all(np.diff(ends) >= 0)


@RUNS
@given(worlds(sessions=False, hashes=False), st.booleans())
def test_faster_hardware_does_the_same_work_in_less_time(cluster: Cluster, stepped: bool) -> None:
    replicas = cluster.replicas[:1]
    rows = np.arange(len(cluster.trace))
    trace = cluster.trace.select(rows).replace(arrival_s=np.zeros(len(rows)))
    faster = [replace(replicas[0], slowdown=replicas[0].slowdown / 2)]
    slow = Cluster(replicas, trace, prefix_cache=False, stepped=stepped)
    fast = Cluster(faster, trace, prefix_cache=False, stepped=stepped)
    play(slow)
    play(fast)
    assert fast.memory.replicas["iterations"][0] == slow.memory.replicas["iterations"][0]
    assert np.isclose(2 * fast.now_s, slow.now_s, rtol=1e-9)


@RUNS
@given(worlds())
def test_no_replica_idles_while_requests_wait(cluster: Cluster) -> None:
    while (row := cluster.next_request()) is not None:
        cluster.dispatch(row % len(cluster.replicas))
        owners = cluster.memory.replicas
        idle = np.isinf(owners["iteration_end_s"])
        assert not np.any(idle & (owners["waiting"] + owners["running"] > 0))
        assert np.all(idle | (owners["running"] > 0))
