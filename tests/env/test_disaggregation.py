"""Prefill and decode on different replicas, and the way of the KV cache between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.lifecycle import Phase
from steersman.env.outcomes import STATUSES
from steersman.predictors import ledger as L
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ChangeKind, Conditions, Disaggregation, ReplicaChange
from steersman.traces.schema import Status
from steersman.traces.trace import Trace
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of, worlds

PROFILE = small_profile(kv_capacity_tokens=16_000, max_num_seqs=64, max_batched_tokens=2048)
PAIR = Conditions(disaggregation=Disaggregation((0,), (1,), bandwidth_gb_s=10.0, latency_s=0.002))
ONE_AND_TWO = Conditions(disaggregation=Disaggregation((0,), (1, 2)))


def zeros(trace: Trace) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.zeros(len(trace), dtype=np.int64)


def test_the_transfer_takes_its_time_between_the_first_token_and_the_second() -> None:
    trace = trace_of(request(0, 0.0, 1000, 20))
    together, apart = (
        Cluster(specs(PROFILE), trace),
        Cluster(specs(PROFILE, PROFILE), trace, conditions=PAIR),
    )
    play(together)
    play(apart, zeros(trace))
    one, two = together.outcomes(), apart.outcomes()
    transfer_s = 0.002 + 1000 * PROFILE.model.kv_bytes_per_token / 10e9
    assert two.ttft_s[0] == one.ttft_s[0]
    assert two.e2e_s[0] == pytest.approx(one.e2e_s[0] + transfer_s)
    assert two.replica.tolist() == [1]
    assert apart.memory.replicas["iterations"].tolist() == [1, 19]


def test_a_single_token_needs_no_transfer() -> None:
    trace = trace_of(request(0, 0.0, 1000, 1))
    cluster = Cluster(specs(PROFILE, PROFILE), trace, conditions=PAIR)
    play(cluster, zeros(trace))
    assert cluster.outcomes().replica.tolist() == [0]


def test_prefills_do_not_stall_what_decodes_elsewhere() -> None:
    rows = [request(0, 0.0, 100, 300)] + [request(i, 0.2 * i, 2000, 1) for i in range(1, 12)]
    trace = trace_of(*rows)
    together = Cluster(specs(PROFILE), trace)
    apart = Cluster(specs(PROFILE, PROFILE), trace, conditions=PAIR)
    play(together)
    play(apart, zeros(trace))
    assert apart.outcomes().tpot_s[0] < 0.9 * together.outcomes().tpot_s[0]


def test_the_decode_replica_is_the_emptiest_or_the_named_one() -> None:
    trace = trace_of(*(request(i, 1.0 * i, 500, 400) for i in range(4)))
    cluster = Cluster(specs(PROFILE, PROFILE, PROFILE), trace, conditions=ONE_AND_TWO)
    play(cluster, zeros(trace))
    # The fourth goes where the second has got further than the first with the third.
    assert cluster.outcomes().replica.tolist() == [1, 2, 2, 1]
    named = Cluster(specs(PROFILE, PROFILE, PROFILE), trace, conditions=ONE_AND_TWO)
    while named.next_request() is not None:
        named.dispatch(0, decode=2)
    named.finish()
    assert named.outcomes().replica.tolist() == [2, 2, 2, 2]


def test_the_router_cannot_choose_a_decode_replica() -> None:
    trace = trace_of(request(0, 0.0, 100, 5))
    cluster = Cluster(specs(PROFILE, PROFILE), trace, conditions=PAIR)
    cluster.next_request()
    assert cluster.observe().mask.tolist() == [True, False]
    cluster.dispatch(1)
    assert cluster.outcomes().outcome(0).status is Status.FAILED


def test_the_blocks_stay_until_the_transfer_is_over() -> None:
    slow = Conditions(disaggregation=Disaggregation((0,), (1,), latency_s=5.0))
    trace = trace_of(request(0, 0.0, 480, 5), request(1, 1.0, 480, 5))
    tight = replace(PROFILE, kv_capacity_tokens=640)
    cluster = Cluster(specs(tight, PROFILE), trace, conditions=slow)
    play(cluster, zeros(trace))
    o = cluster.outcomes()
    assert np.all(o.ok)
    assert o.arrival_s[1] + o.ttft_s[1] > 5.0


@pytest.mark.parametrize("broken", [0, 1])
def test_what_is_under_way_fails_with_either_end(broken: int) -> None:
    slow = Conditions(
        (ReplicaChange(1.0, broken, ChangeKind.FAIL),),
        disaggregation=Disaggregation((0,), (1,), latency_s=5.0),
    )
    trace = trace_of(request(0, 0.0, 480, 5))
    cluster = Cluster(specs(PROFILE, PROFILE), trace, conditions=slow)
    play(cluster, zeros(trace))
    assert cluster.outcomes().outcome(0).status is Status.FAILED
    assert cluster.now_s == pytest.approx(1.0 if broken == 0 else cluster.now_s)
    assert np.all(cluster.state[:, L.INFLIGHT] == 0.0)


def test_a_draining_prefill_replica_waits_for_its_transfers() -> None:
    slow = Conditions(disaggregation=Disaggregation((0,), (1,), latency_s=5.0))
    cluster = Cluster(specs(PROFILE, PROFILE), trace_of(request(0, 0.0, 480, 5)), conditions=slow)
    cluster.next_request()
    cluster.dispatch(0)
    cluster.next_request(until_s=1.0)
    cluster.drain(0)
    assert [cluster.phases[0]] == [Phase.DRAINING]
    cluster.next_request(until_s=6.0)
    assert [cluster.phases[0]] == [Phase.GONE]
    cluster.finish()
    assert np.all(cluster.outcomes().ok)


@pytest.mark.parametrize(
    ("split", "said"),
    [
        (Disaggregation((), (1,)), "'prefill' is empty"),
        (Disaggregation((0,), (0,)), "in 'prefill' and in 'decode'"),
        (Disaggregation((0,), (4,)), "decode replica 4 is not in 0..1"),
        (Disaggregation((0,), (1,), bandwidth_gb_s=0.0), "bandwidth_gb_s = 0.0 must be positive"),
    ],
)
def test_an_impossible_division_of_labour_is_refused(split: Disaggregation, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Cluster(specs(PROFILE, PROFILE), trace_of(), conditions=Conditions(disaggregation=split))


@settings(max_examples=80, deadline=None)
@given(
    worlds(),
    st.sampled_from([0.0, 0.01, 0.5]),
    st.lists(
        st.builds(
            ReplicaChange, st.floats(0.0, 3.0), st.integers(0, 1), st.sampled_from(list(ChangeKind))
        ),
        max_size=6,
    ),
    st.sampled_from([1, 2]),
)
def test_nothing_is_lost_on_the_way(
    world: Cluster, latency_s: float, changes: list[ReplicaChange], stages: int
) -> None:
    if len(world.replicas) < 2:
        return
    replicas = tuple(
        replace(spec, cold_start_s=0.2, profile=replace(spec.profile, pipeline_parallel=stages))
        for spec in world.replicas
    )
    split = Disaggregation((0,), (1,), latency_s=latency_s)
    conditions = Conditions(tuple(changes), disaggregation=split)
    cluster = Cluster(replicas, world.trace, conditions=conditions)
    last_s = 0.0
    cost = 0.0
    while (row := cluster.next_request()) is not None:
        assert cluster.now_s >= last_s
        last_s = cluster.now_s
        assert cluster.cost_accrued >= cost - 1e-12
        cost = cluster.cost_accrued
        check_memory(cluster.memory)
        cluster.dispatch((row % 2) * (len(replicas) - 1) if len(replicas) > 2 else 0)
    twin = cluster.clone()
    for each in (cluster, twin):
        each.finish(1e9)
        check_memory(each.memory)
    outcomes = cluster.outcomes()
    assert np.array_equal(outcomes.e2e_s, twin.outcomes().e2e_s, equal_nan=True)
    assert not np.any(outcomes.status == STATUSES.index(Status.UNFINISHED))
    assert np.array_equal(outcomes.output_tokens[outcomes.ok], cluster.trace.output_tokens[outcomes.ok])
    assert not cluster.memory.replicas["held_blocks"].any()
    assert not cluster.memory.replicas["inflight"].any()
    assert np.allclose(cluster.state[:, 17:22], 0.0, atol=1e-6)
    if not changes:
        limit = cluster.memory.replicas["token_limit"]
        total = cluster.trace.input_tokens + cluster.trace.output_tokens
        assert np.all(outcomes.ok[total <= limit.min()])
