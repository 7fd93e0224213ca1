"""Requests that the router holds back and decides about later."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.env.cluster import Cluster
from steersman.env.vector import ClusterBatch
from steersman.predictors import ledger as L
from steersman.traces.scenario import Conditions
from steersman.traces.schema import Priority, Status
from tests.env.worlds import check_memory, request, small_profile, specs, trace_of

PROFILE = small_profile(kv_capacity_tokens=16_000, max_num_seqs=64, max_batched_tokens=2048)


def held(cluster: Cluster, until_s: float) -> int:
    """Hold the first arrival until then, and take it up again."""
    row = cluster.next_request()
    assert row is not None
    cluster.hold()
    assert cluster.pending is None
    assert cluster.next_request(until_s) is None
    cluster.take_up(row)
    return row


def test_waiting_counts_for_the_client_and_not_for_the_replica() -> None:
    trace = trace_of(request(0, 1.0, 500, 4))
    prompt, late = Cluster(specs(PROFILE), trace), Cluster(specs(PROFILE), trace)
    prompt.next_request()
    prompt.dispatch(0)
    prompt.finish()
    held(late, 3.5)
    late.dispatch(0)
    late.finish()
    at_once, after = prompt.outcomes(), late.outcomes()
    assert after.arrival_s[0] == 1.0
    assert after.ttft_s[0] == pytest.approx(at_once.ttft_s[0] + 2.5)
    assert after.e2e_s[0] == pytest.approx(at_once.e2e_s[0] + 2.5)
    assert after.tpot_s[0] == pytest.approx(at_once.tpot_s[0])
    for column in (L.MEAN_TTFT_S, L.MEAN_TPOT_S, L.MEAN_E2E_S, L.LOG_BIAS_TTFT):
        assert late.state[0, column] == pytest.approx(prompt.state[0, column])


def test_the_cost_is_that_of_the_times_the_client_saw() -> None:
    cluster = Cluster(specs(PROFILE), trace_of(request(0, 1.0, 500, 4)))
    held(cluster, 1.4)
    cluster.dispatch(0)
    cluster.finish()
    got = cluster.outcomes()
    wanted = got.ttft_s[0] / got.ttft_slo_s[0] + got.tpot_s[0] / got.tpot_slo_s[0]
    assert got.slo_met[0]
    assert cluster.cost_accrued == pytest.approx(wanted)


@pytest.mark.parametrize("status", [Status.REJECTED, Status.CANCELLED, Status.UNFINISHED])
def test_what_is_held_may_end_without_a_replica(status: Status) -> None:
    cluster = Cluster(specs(PROFILE), trace_of(request(0, 1.0, 500, 4)))
    held(cluster, 2.0)
    if status is Status.REJECTED:
        cluster.dispatch(-1)
    elif status is Status.CANCELLED:
        cluster.withdraw()
    cluster.finish()
    outcome = cluster.outcomes().outcome(0)
    assert outcome.status is status
    assert outcome.arrival_s == 1.0
    assert outcome.replica == -1


def test_what_is_still_held_at_the_end_is_unfinished() -> None:
    cluster = Cluster(specs(PROFILE), trace_of(request(0, 1.0, 500, 4)))
    cluster.next_request()
    cluster.hold()
    cluster.finish()
    outcome = cluster.outcomes().outcome(0)
    assert (outcome.status, outcome.arrival_s) == (Status.UNFINISHED, 1.0)


def test_the_next_turn_waits_for_an_answer_that_is_held() -> None:
    first = request(0, 1.0, 500, 4, session_id="s")
    second = request(1, 1.5, 600, 4, session_id="s", parent_id="r0", think_time_s=1.0)
    cluster = Cluster(specs(PROFILE), trace_of(first, second))
    held(cluster, 10.0)
    cluster.dispatch(0)
    assert cluster.next_request() == 1
    assert cluster.now_s > 11.0
    cluster.dispatch(0)
    cluster.finish()
    assert cluster.outcomes().ok.all()


def test_patience_runs_while_a_request_is_held() -> None:
    cluster = Cluster(
        specs(replace(PROFILE, max_num_seqs=1)),
        trace_of(request(0, 0.0, 500, 2000), request(1, 1.0, 500, 4)),
        conditions=Conditions(patience_s=5.0),
    )
    cluster.next_request()
    cluster.dispatch(0)
    held(cluster, 4.0)
    cluster.dispatch(0)
    cluster.finish()
    outcomes = cluster.outcomes()
    assert outcomes.outcome(1).status is Status.CANCELLED
    check_memory(cluster.memory)


def test_only_what_is_held_can_be_taken_up() -> None:
    cluster = Cluster(specs(PROFILE), trace_of(request(0, 1.0, 500, 4), request(1, 1.0, 500, 4)))
    with pytest.raises(RuntimeError, match="no request is pending"):
        cluster.hold()
    with pytest.raises(ValueError, match="request 0 is not held"):
        cluster.take_up(0)
    cluster.next_request()
    cluster.hold()
    cluster.next_request()
    with pytest.raises(RuntimeError, match="request 1 waits"):
        cluster.take_up(0)
    cluster.dispatch(0)
    with pytest.raises(ValueError, match="request 1 is not held"):
        cluster.take_up(1)


def test_a_batch_holds_as_its_clusters_do_alone() -> None:
    trace = trace_of(*(request(i, 0.2 * i, 400 + 10 * i, 50) for i in range(8)))

    def drive(batch: ClusterBatch, index: int) -> None:
        for row in range(8):
            assert batch.next_requests()[index] == row
            batch.hold(index)
        batch.next_requests(np.full(len(batch), 4.0))
        for row in (3, 1, 7, 0, 2, 6, 5, 4):
            batch.take_up(index, row)
            batch.dispatch(np.zeros(len(batch), dtype=np.int64))
        batch.finish(index)

    alone = Cluster(specs(PROFILE), trace)
    for _ in range(8):
        alone.next_request()
        alone.hold()
    alone.next_request(4.0)
    for row in (3, 1, 7, 0, 2, 6, 5, 4):
        alone.take_up(row)
        alone.dispatch(0)
    alone.finish()
    batch = ClusterBatch([Cluster(specs(PROFILE), trace)])
    drive(batch, 0)
    np.testing.assert_array_equal(batch.clusters[0].outcomes().ttft_s, alone.outcomes().ttft_s)


def test_engines_that_know_no_priorities_serve_first_come_first_served() -> None:
    requests = [
        request(0, 0.0, 500, 300),
        request(1, 0.1, 500, 4, priority=Priority.BACKGROUND),
        request(2, 0.2, 500, 4, priority=Priority.INTERACTIVE),
    ]
    firsts = {}
    for scheduling in (True, False):
        cluster = Cluster(
            specs(replace(PROFILE, max_num_seqs=1)),
            trace_of(*requests),
            conditions=Conditions(priority_scheduling=scheduling),
        )
        while cluster.next_request() is not None:
            cluster.dispatch(0)
        cluster.finish()
        outcomes = cluster.outcomes()
        firsts[scheduling] = outcomes.arrival_s + outcomes.ttft_s
    assert firsts[True][2] < firsts[True][1]
    assert firsts[False][1] < firsts[False][2]
