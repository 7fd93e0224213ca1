"""Replicas that start, drain, break and slow down, and clients that leave."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.lifecycle import Phase
from steersman.env.outcomes import STATUSES
from steersman.predictors import ledger as L
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ChangeKind, Conditions, ReplicaChange, ReplicaSpec
from steersman.traces.schema import Status
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of, worlds

PROFILE = small_profile(kv_capacity_tokens=16_000, max_num_seqs=64, max_batched_tokens=2048)
STEADY = trace_of(*(request(i, 1.0 * i, 100, 20) for i in range(30)))


def with_standby(cold_start_s: float) -> tuple[ReplicaSpec, ...]:
    return (
        ReplicaSpec("here", PROFILE),
        ReplicaSpec("spare", PROFILE, standby=True, cold_start_s=cold_start_s),
    )


def phase(cluster: Cluster, replica: int) -> Phase:
    return cluster.phases[replica]


def change(at_s: float, replica: int, kind: ChangeKind, factor: float = 1.0) -> ReplicaChange:
    return ReplicaChange(at_s, replica, kind, factor)


def test_a_standby_replica_serves_after_its_cold_start() -> None:
    cluster = Cluster(
        with_standby(10.0), STEADY, conditions=Conditions((change(5.5, 1, ChangeKind.START),))
    )
    seen: dict[float, tuple[Phase, bool]] = {}
    while cluster.next_request() is not None:
        seen[cluster.now_s] = cluster.phases[1], bool(cluster.observe().mask[1])
        cluster.dispatch(0)
    assert seen[5.0] == (Phase.GONE, False)
    assert seen[6.0] == (Phase.PENDING, False)
    assert seen[15.0] == (Phase.PENDING, False)
    assert seen[16.0] == (Phase.SERVING, True)
    assert cluster.billed_s.tolist() == [29.0, 29.0 - 5.5]
    assert cluster.gpu_hours == pytest.approx((29.0 + 23.5) / 3600)
    assert cluster.cost_usd == pytest.approx(PROFILE.cost_per_hour * (29.0 + 23.5) / 3600)


def test_a_request_sent_to_a_replica_that_is_not_serving_fails() -> None:
    cluster = Cluster(with_standby(10.0), STEADY)
    for expected in (Phase.GONE, Phase.PENDING):
        assert cluster.next_request() is not None
        assert phase(cluster, 1) == expected
        cluster.dispatch(1)
        cluster.start(1)
    outcomes = cluster.outcomes()
    assert outcomes.status[:2].tolist() == [STATUSES.index(Status.FAILED)] * 2


def test_a_draining_replica_finishes_what_it_has_and_is_gone() -> None:
    trace = trace_of(request(0, 0.0, 100, 50), request(1, 0.1, 100, 5), request(2, 30.0, 100, 5))
    cluster = Cluster(specs(PROFILE, PROFILE), trace)
    cluster.next_request()
    cluster.dispatch(0)
    assert cluster.drain(0)
    assert not cluster.drain(0)
    cluster.next_request()
    assert phase(cluster, 0) == Phase.DRAINING
    assert cluster.state[0, L.DRAINING] == 1.0
    assert cluster.observe().mask.tolist() == [False, True]
    cluster.dispatch(1)
    cluster.next_request()
    assert phase(cluster, 0) == Phase.GONE
    assert cluster.state[0, L.DRAINING] == 0.0
    cluster.dispatch(1)
    cluster.finish()
    outcomes = cluster.outcomes()
    assert np.all(outcomes.ok)
    assert cluster.billed_s[0] == pytest.approx(outcomes.e2e_s[0])


def test_draining_can_be_called_off_and_a_start_too() -> None:
    cluster = Cluster(with_standby(10.0), STEADY)
    cluster.next_request()
    cluster.dispatch(0)
    cluster.drain(0)
    assert cluster.start(0)
    assert not cluster.start(0)
    assert cluster.phases == (Phase.SERVING, Phase.GONE)
    assert cluster.add(profile="no such") is None
    assert cluster.add() == 1
    assert cluster.add() is None
    assert cluster.drain(1)
    assert cluster.phases == (Phase.SERVING, Phase.GONE)


def test_an_empty_replica_is_gone_at_once_and_can_come_back() -> None:
    cluster = Cluster(with_standby(2.0), STEADY)
    assert cluster.drain(0)
    assert cluster.phases == (Phase.GONE, Phase.GONE)
    assert cluster.start(0, cold_start_s=3.0)
    assert cluster.next_request(until_s=2.5) is not None
    cluster.dispatch(-1)
    assert cluster.next_request(until_s=3.5) is not None
    cluster.dispatch(-1)
    assert cluster.next_request(until_s=2.9) is not None
    cluster.dispatch(-1)
    assert cluster.next_request(until_s=2.9) is None
    assert cluster.now_s == 2.9
    assert phase(cluster, 0) == Phase.PENDING
    assert cluster.next_request(until_s=3.0) == 3
    assert phase(cluster, 0) == Phase.SERVING


def test_time_can_be_stopped_between_arrivals_and_after_them() -> None:
    trace = trace_of(request(0, 1.0, 100, 30), request(1, 5.0, 100, 30))
    stepped, whole = Cluster(specs(PROFILE), trace), Cluster(specs(PROFILE), trace)
    play(whole)
    at_s = 0.0
    while at_s < 60.0:
        at_s += 0.25
        while stepped.next_request(until_s=at_s) is not None:
            stepped.dispatch(0)
        assert stepped.now_s == at_s
    assert stepped.exhausted
    with pytest.raises(ValueError, match="has passed"):
        stepped.next_request(until_s=1.0)
    # To rounding only: a stop cuts a stretch of iterations in two.
    assert np.allclose(stepped.outcomes().e2e_s, whole.outcomes().e2e_s, rtol=1e-12)


def test_scheduled_failures_happen_in_order_of_time() -> None:
    cluster = Cluster(
        specs(PROFILE, PROFILE),
        STEADY,
        conditions=Conditions((change(12.25, 0, ChangeKind.RECOVER), change(10.0, 0, ChangeKind.FAIL))),
    )
    play(cluster, np.zeros(len(STEADY), dtype=np.int64))
    failed = np.flatnonzero(cluster.outcomes().status == STATUSES.index(Status.FAILED))
    assert failed.tolist() == [10, 11, 12]
    assert cluster.billed_s[0] == cluster.now_s


def test_a_failure_strikes_during_the_final_drain() -> None:
    trace = trace_of(request(0, 0.0, 100, 1000))
    cluster = Cluster(specs(PROFILE), trace, conditions=Conditions((change(2.0, 0, ChangeKind.FAIL),)))
    play(cluster)
    outcome = cluster.outcomes().outcome(0)
    assert outcome.status is Status.FAILED
    assert cluster.now_s == 2.0
    late = Cluster(specs(PROFILE), trace, conditions=Conditions((change(1e6, 0, ChangeKind.FAIL),)))
    play(late)
    assert late.outcomes().outcome(0).status is Status.OK
    assert late.now_s == late.outcomes().e2e_s[0]


def test_a_straggler_slows_down_and_recovers() -> None:
    changes = (change(10.5, 0, ChangeKind.SLOW, 3.0), change(20.5, 0, ChangeKind.SLOW))
    cluster = Cluster(specs(PROFILE), STEADY, conditions=Conditions(changes))
    play(cluster)
    e2e_s = cluster.outcomes().e2e_s
    assert e2e_s[12] == pytest.approx(3 * e2e_s[5])
    assert e2e_s[25] == pytest.approx(e2e_s[5])


def test_the_router_believes_nothing_of_a_cache_that_was_lost() -> None:
    hashes = tuple(range(1, 7))
    requests = (request(i, 1.0 * i, 100, 5, block_hashes=hashes, block_tokens=16) for i in range(4))
    cluster = Cluster(
        specs(PROFILE),
        trace_of(*requests),
        conditions=Conditions((change(1.5, 0, ChangeKind.FAIL), change(1.6, 0, ChangeKind.RECOVER))),
    )
    matches = []
    while cluster.next_request() is not None:
        matches.append(int(cluster.match_tokens()[0]))
        cluster.dispatch(0)
    cluster.finish()
    assert matches == [0, 96, 0, 96]
    assert cluster.outcomes().cached_tokens.tolist() == [0, 96, 0, 96]


def test_a_client_leaves_when_its_first_token_is_late() -> None:
    one = small_profile(max_num_seqs=1, kv_capacity_tokens=16_000)
    trace = trace_of(*(request(i, 0.0, 100, 100) for i in range(4)))
    patient = Cluster(specs(one), trace)
    play(patient)
    waits_s = patient.outcomes().ttft_s
    patience_s = float(waits_s[1] + waits_s[2]) / 2
    cluster = Cluster(specs(one), trace, conditions=Conditions(patience_s=patience_s))
    play(cluster)
    outcomes = cluster.outcomes()
    cancelled = outcomes.status == STATUSES.index(Status.CANCELLED)
    assert cancelled.tolist() == [False, False, True, True]
    assert np.allclose(outcomes.ttft_s[:2], waits_s[:2], rtol=1e-12)
    assert cluster.state[0, L.INFLIGHT] == 0.0


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (change(1.0, 7, ChangeKind.FAIL), "replica = 7 is not in 0..0"),
        (change(-1.0, 0, ChangeKind.FAIL), "at_s must be"),
        (change(1.0, 0, ChangeKind.SLOW, 0.0), "factor = 0.0 must be positive"),
    ],
)
def test_impossible_changes_are_refused(wrong: ReplicaChange, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Cluster(specs(PROFILE), STEADY, conditions=Conditions((wrong,)))


CHANGES = st.lists(
    st.builds(
        ReplicaChange,
        st.floats(0.0, 3.0),
        st.integers(0, 2),
        st.sampled_from(list(ChangeKind)),
        st.sampled_from([0.5, 1.0, 4.0]),
    ),
    max_size=12,
)


@settings(max_examples=60, deadline=None)
@given(worlds(), CHANGES, st.sampled_from([None, 0.05, 0.5]))
def test_whatever_happens_every_request_ends_once(
    world: Cluster, changes: list[ReplicaChange], patience_s: float | None
) -> None:
    replicas = tuple(
        ReplicaSpec(spec.replica_id, spec.profile, spec.slowdown, standby=i == 2, cold_start_s=0.3)
        for i, spec in enumerate(world.replicas)
    )
    count = len(replicas)
    cluster = Cluster(
        replicas,
        world.trace,
        conditions=Conditions(tuple(c for c in changes if c.replica < count), patience_s=patience_s),
    )
    last_s, arrived = 0.0, 0
    billed = cluster.billed_s
    while (row := cluster.next_request()) is not None:
        assert cluster.now_s >= last_s
        last_s = cluster.now_s
        arrived += 1
        check_memory(cluster.memory)
        up = [now in (Phase.SERVING, Phase.DRAINING) for now in cluster.phases]
        healthy = cluster.memory.replicas["healthy"] == 1
        assert np.array_equal(cluster.state[:, L.HEALTHY] == 1, up & healthy)
        assert np.all(cluster.billed_s >= billed)
        billed = cluster.billed_s
        twin = cluster.clone() if row == 5 else None
        cluster.dispatch(row % count)
        if twin is not None:
            twin.dispatch(row % count)
            play(twin)
    assert arrived == len(cluster.trace)
    cluster.finish(drain_s=1e9)
    check_memory(cluster.memory)
    outcomes = cluster.outcomes()
    assert not np.any(outcomes.status == STATUSES.index(Status.UNFINISHED))
    assert np.array_equal(outcomes.output_tokens[outcomes.ok], cluster.trace.output_tokens[outcomes.ok])
    if patience_s is not None:
        assert np.all(outcomes.ttft_s[outcomes.ok] <= patience_s + 1e-9)
    assert not cluster.memory.replicas["held_blocks"].any()
    assert np.allclose(cluster.state[:, 17:22], 0.0, atol=1e-6)
    assert np.all(cluster.billed_s <= cluster.now_s + 1e-9)
