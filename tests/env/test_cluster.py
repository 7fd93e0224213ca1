from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from steersman.env.cluster import FIRST_SLOTS, Cluster
from steersman.env.observation import observe
from steersman.env.outcomes import STATUSES
from steersman.predictors import ledger as L
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.scenario import Staleness
from steersman.traces.schema import HardwareProfile, Priority, Status
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of

PROFILE = small_profile(kv_capacity_tokens=16_000, max_num_seqs=64, max_batched_tokens=2048)


def iteration_s(
    p: HardwareProfile, *, decoding: tuple[int, ...] = (), chunk: int = 0, before: int = 0
) -> float:
    """HardwareProfile's formula, for contexts of what decodes and one prefill chunk."""
    prefill_s = (
        p.prefill_base_s + p.prefill_token_s * chunk + p.prefill_token2_s * chunk * (chunk + 2 * before)
    )
    decode_s = p.decode_seq_s * len(decoding) + p.decode_context_s * sum(decoding)
    return p.host_overhead_s + decode_s + max(p.decode_base_s, prefill_s if chunk else 0.0)


def test_a_lone_request_takes_the_formulas_time() -> None:
    cluster = Cluster(specs(PROFILE), trace_of(request(0, 1.0, 500, 4)))
    play(cluster)
    outcome = cluster.outcomes().outcome(0)
    prefill_s = iteration_s(PROFILE, chunk=500)
    decode_s = sum(iteration_s(PROFILE, decoding=(500 + k,)) for k in (1, 2, 3))
    assert outcome.status is Status.OK
    assert outcome.ttft_s == pytest.approx(prefill_s)
    assert outcome.e2e_s == pytest.approx(prefill_s + decode_s)
    assert outcome.tpot_s == pytest.approx(decode_s / 3)
    assert outcome.output_tokens == 4


def test_a_straggler_is_slower_by_its_factor() -> None:
    trace = trace_of(request(0, 0.0, 500, 4))
    normal, slow = Cluster(specs(PROFILE), trace), Cluster(specs(PROFILE, slowdown=3.0), trace)
    play(normal)
    play(slow)
    assert slow.outcomes().e2e_s[0] == pytest.approx(3 * normal.outcomes().e2e_s[0])


def test_a_chunked_prefill_pays_its_square_once() -> None:
    cluster = Cluster(specs(PROFILE), trace_of(request(0, 0.0, 5000, 1)))
    play(cluster)
    chunks = ((2048, 0), (2048, 2048), (904, 4096))
    total_s = sum(iteration_s(PROFILE, chunk=chunk, before=before) for chunk, before in chunks)
    assert cluster.outcomes().ttft_s[0] == pytest.approx(total_s)
    squares = sum(chunk * (chunk + 2 * before) for chunk, before in chunks)
    assert squares == 5000**2


def test_a_prefill_stalls_what_decodes_beside_it() -> None:
    first = iteration_s(PROFILE, chunk=100)
    trace = trace_of(request(0, 0.0, 100, 3), request(1, first / 2, 400, 1))
    cluster = Cluster(specs(PROFILE), trace)
    play(cluster)
    o = cluster.outcomes()
    mixed = iteration_s(PROFILE, decoding=(101,), chunk=400)
    assert o.ttft_s[1] == pytest.approx(first / 2 + mixed)
    assert o.e2e_s[0] == pytest.approx(first + mixed + iteration_s(PROFILE, decoding=(102,)))


def test_lower_priorities_first_in_order_within() -> None:
    one = replace(PROFILE, max_num_seqs=1)
    classes = (Priority.BATCH, Priority.BACKGROUND, Priority.BATCH, Priority.INTERACTIVE)
    requests = [request(9, 0.0, 100, 5)]
    requests += [request(i, 0.001 * (i + 1), 100, 5, priority=p) for i, p in enumerate(classes)]
    cluster = Cluster(specs(one), trace_of(*requests))
    play(cluster)
    o = cluster.outcomes()
    order = np.argsort(o.arrival_s + o.e2e_s)
    assert [o.request_ids[row] for row in order] == ["r9", "r3", "r0", "r2", "r1"]


def test_without_memory_the_newest_of_the_lowest_class_gives_way() -> None:
    profile = small_profile(kv_capacity_tokens=16 * 12, max_num_seqs=3, max_batched_tokens=256)
    trace = trace_of(
        request(0, 0.0, 48, 60),
        request(1, 0.001, 48, 60, priority=Priority.BATCH),
        request(2, 0.002, 48, 60),
    )
    cluster = Cluster(specs(profile), trace, prefix_cache=False)
    play(cluster)
    o = cluster.outcomes()
    assert np.all(o.ok)
    assert o.preemptions.tolist() == [0, 1, 1]  # r2 only once the batch class is gone
    assert o.output_tokens.tolist() == [60, 60, 60]


def test_a_preempted_request_reuses_what_is_still_cached() -> None:
    profile = small_profile(kv_capacity_tokens=16 * 12, max_num_seqs=2, max_batched_tokens=256)
    trace = trace_of(request(0, 0.0, 80, 40), request(1, 0.001, 80, 60))
    times = []
    for prefix_cache in (False, True):
        cluster = Cluster(specs(profile), trace, prefix_cache=prefix_cache)
        play(cluster)
        assert cluster.outcomes().preemptions.tolist() == [0, 1]
        times.append(cluster.outcomes().e2e_s[1])
    assert times[1] < times[0]


def test_a_cached_prefix_is_not_computed_again() -> None:
    hashes = tuple(range(1, 32))
    trace = trace_of(
        request(0, 0.0, 500, 2, block_hashes=hashes, block_tokens=16),
        request(1, 10.0, 700, 2, block_hashes=(*hashes, *range(50, 62)), block_tokens=16),
        request(2, 20.0, 496, 2, block_hashes=hashes, block_tokens=16),
    )
    cluster = Cluster(specs(PROFILE), trace)
    play(cluster)
    o = cluster.outcomes()
    assert o.cached_tokens.tolist() == [0, 496, 495], "at least one token is computed"
    assert o.ttft_s[1] == pytest.approx(iteration_s(PROFILE, chunk=204, before=496))
    cold = Cluster(specs(PROFILE), trace, prefix_cache=False)
    play(cold)
    assert cold.outcomes().cached_tokens.tolist() == [0, 0, 0]


def test_the_least_recently_used_prefix_is_evicted() -> None:
    profile = small_profile(kv_capacity_tokens=16 * 40, max_num_seqs=2, max_batched_tokens=1024)

    def prompt(number: int, at_s: float, family: int) -> object:
        hashes = tuple(1000 * family + k for k in range(16))
        return request(number, at_s, 260, 2, block_hashes=hashes, block_tokens=16)

    families = (1, 2, 1, 3, 1, 2)  # two prompts fit: 3 evicts 2, and 1 was used since
    trace = trace_of(*(prompt(i, 10.0 * i, f) for i, f in enumerate(families)))  # type: ignore[arg-type]
    cluster = Cluster(specs(profile), trace)
    play(cluster)
    hits = cluster.outcomes().cached_tokens
    assert hits[[0, 1, 3]].tolist() == [0, 0, 0]
    assert hits[2] == hits[4] == 256
    assert hits[5] < 256


def test_what_can_never_fit_is_rejected_and_costs_a_failure() -> None:
    profile = small_profile(kv_capacity_tokens=640)
    trace = trace_of(request(0, 0.0, 600, 41), request(1, 0.0, 600, 40), request(2, 0.0, 10**6, 1))
    cluster = Cluster(specs(profile), trace)
    play(cluster)
    o = cluster.outcomes()
    assert [STATUSES[s] for s in o.status] == [Status.REJECTED, Status.OK, Status.REJECTED]
    assert cluster.cost_accrued >= 84.0


def test_a_broken_replica_fails_what_it_holds_and_takes_nothing() -> None:
    trace = trace_of(*(request(i, 0.01 * i, 200, 50) for i in range(6)))
    cluster = Cluster(specs(PROFILE, PROFILE), trace)
    for row in range(4):
        assert cluster.next_request() == row
        cluster.dispatch(row % 2)
    cluster.next_request()
    assert cluster.observe().mask.tolist() == [True, True]
    cluster.set_health(0, False)
    check_memory(cluster.memory)
    assert cluster.observe().mask.tolist() == [False, True]
    assert cluster.state[0, L.INFLIGHT] == 0
    cluster.dispatch(0)
    cluster.set_health(0, True)
    cluster.next_request()
    cluster.dispatch(0)
    cluster.finish()
    statuses = [STATUSES[s] for s in cluster.outcomes().status]
    failed = [Status.FAILED, Status.OK, Status.FAILED, Status.OK, Status.FAILED, Status.OK]
    assert statuses == failed


def test_the_next_turn_arrives_a_think_time_after_its_parents_end() -> None:
    trace = trace_of(
        request(0, 0.0, 100, 20, session_id="s"),
        request(1, 0.1, 100, 20),
        request(2, 5.0, 150, 20, session_id="s", parent_id="r0", think_time_s=0.25),
    )
    cluster = Cluster(specs(PROFILE, PROFILE), trace)
    play(cluster)
    o = cluster.outcomes()
    assert o.arrival_s[2] == pytest.approx(o.e2e_s[0] + 0.25)


def test_a_refused_request_is_rejected_and_its_session_goes_on() -> None:
    trace = trace_of(request(0, 1.0, 10, 5), request(1, 9.0, 10, 5, parent_id="r0", think_time_s=0.5))
    cluster = Cluster(specs(PROFILE), trace)
    cluster.next_request()
    cluster.dispatch(-1)
    assert cluster.next_request() == 1
    assert cluster.now_s == 1.5
    cluster.dispatch(0)
    cluster.finish()
    o = cluster.outcomes()
    assert [STATUSES[s] for s in o.status] == [Status.REJECTED, Status.OK]
    assert o.replica.tolist() == [-1, 0]


def test_what_did_not_end_or_arrive_is_unfinished() -> None:
    trace = trace_of(
        request(0, 0.0, 100, 1000), request(1, 1.0, 10, 5), request(2, 2.0, 9, 5, parent_id="r0")
    )
    cluster = Cluster(specs(PROFILE), trace)
    cluster.next_request()
    cluster.dispatch(0)
    cluster.next_request()
    cluster.finish(0.01)
    o = cluster.outcomes()
    assert {STATUSES[s] for s in o.status} == {Status.UNFINISHED}
    assert o.arrival_s[:2].tolist() == [0.0, 1.0]
    assert np.isnan(o.arrival_s[2])
    assert np.isnan(o.e2e_s).all()
    assert cluster.next_request() is None


def test_the_router_sees_scrapes_and_its_own_account_only() -> None:
    trace = trace_of(*(request(i, 0.05 * i, 400, 100) for i in range(20)))
    cluster = Cluster(specs(PROFILE), trace, staleness=Staleness(scrape_interval_s=0.5, jitter=0.0))
    seen = []
    while cluster.next_request() is not None:
        row = cluster.state[0]
        seen.append((row[L.SCRAPED_AT_S], row[L.RUNNING], row[L.WAITING], row[L.KV_USAGE]))
        cluster.dispatch(0)
    scrapes = sorted(set(seen))
    times = [at_s for at_s, *_ in scrapes]
    assert len(times) == len(set(times)), "between scrapes the scraped columns do not move"
    assert np.allclose(np.diff(times)[1:], 0.5)
    assert len(times) == 3


def test_lost_scrapes_leave_the_view_as_it_was() -> None:
    trace = trace_of(*(request(i, 0.05 * i, 400, 100) for i in range(20)))
    cluster = Cluster(specs(PROFILE), trace, staleness=Staleness(0.1, 0.0, loss=1.0))
    play(cluster)
    assert cluster.state[0, L.SCRAPED_AT_S] == 0.0


def test_observe_is_the_shared_observation() -> None:
    trace = trace_of(*(request(i, 0.05 * i, 400, 100) for i in range(9)))
    cluster = Cluster(specs(PROFILE, PROFILE), trace)
    for row in range(9):
        cluster.next_request()
        ours = cluster.observe()
        assert cluster.observe() is ours
        again = observe(
            cluster.state,
            cluster.table.features[row],
            np.zeros(2),
            np.array(cluster.now_s),
        )
        assert np.array_equal(ours.replicas, again.replicas)
        cluster.dispatch(row % 2)


def test_prefix_matches_follow_the_routers_own_dispatches() -> None:
    hashes = tuple(range(20))
    trace = trace_of(
        *(request(i, float(i), 330, 5, block_hashes=hashes, block_tokens=16) for i in range(3))
    )
    cluster = Cluster(specs(PROFILE, PROFILE), trace)
    matches = []
    while cluster.next_request() is not None:
        fraction = cluster.observe().replicas[:, REPLICA_INDEX["match_fraction"]]
        matches.append(np.round(fraction * 330).tolist())
        cluster.dispatch(1)
    assert matches == [[0, 0], [0, 320], [0, 320]]
    cluster.set_health(1, False)


def test_more_than_the_first_slots_may_be_in_flight() -> None:
    count = 3 * FIRST_SLOTS
    trace = trace_of(*(request(i, 0.0, 20, 3) for i in range(count)))
    cluster = Cluster(specs(PROFILE), trace)
    play(cluster)
    check_memory(cluster.memory)
    assert cluster.outcomes().ok.all()


def test_patience_may_be_infinite() -> None:
    cluster = Cluster(specs(PROFILE), trace_of(request(0, 0.0, 100, 50)))
    cluster.next_request()
    cluster.dispatch(0)
    cluster.finish(math.inf)
    assert cluster.outcomes().ok.all()
    assert cluster.now_s == cluster.outcomes().e2e_s[0]


def test_an_empty_trace_is_over_at_once() -> None:
    cluster = Cluster(specs(PROFILE), trace_of())
    assert cluster.next_request() is None
    cluster.finish()
    assert len(cluster.outcomes()) == 0


def test_seeds_move_scrapes_only() -> None:
    trace = trace_of(*(request(i, 0.05 * i, 400, 100) for i in range(50)))
    runs = [Cluster(specs(PROFILE, PROFILE), trace, seed=seed) for seed in (1, 1, 2)]
    for cluster in runs:
        play(cluster)
    assert np.array_equal(runs[0].state, runs[1].state)
    assert not np.array_equal(runs[0].state, runs[2].state)
    # To rounding only: a scrape cuts a stretch of iterations in two.
    assert np.allclose(runs[0].outcomes().ttft_s, runs[2].outcomes().ttft_s, rtol=1e-12)


def test_misuse_is_told() -> None:
    trace = trace_of(request(0, 0.0, 10, 5), request(1, 0.0, 10, 5))
    cluster = Cluster(specs(PROFILE), trace)
    for call in (cluster.observe, lambda: cluster.dispatch(0)):
        with pytest.raises(RuntimeError, match="next_request"):
            call()
    cluster.next_request()
    with pytest.raises(RuntimeError, match="waits for dispatch"):
        cluster.next_request()
    with pytest.raises(ValueError, match="replica 1 is not in"):
        cluster.dispatch(1)
    with pytest.raises(ValueError, match="replica 7 is not in"):
        cluster.set_health(7, False)
    with pytest.raises(ConfigError, match="at least one replica"):
        Cluster((), trace)
    with pytest.raises(TraceError, match="no output_tokens"):
        Cluster(specs(PROFILE), trace_of(replace(request(0, 0.0, 10, 5), output_tokens=None)))
    for wrong in (Staleness(0.0), Staleness(0.2, 1.0), Staleness(0.2, 0.1, 1.5)):
        with pytest.raises(ConfigError, match="scrape_interval_s must be positive"):
            Cluster(specs(PROFILE), trace, staleness=wrong)
    with pytest.raises(ConfigError, match="slowdown = 0"):
        Cluster(specs(PROFILE, slowdown=0.0), trace)
    with pytest.raises(ConfigError, match="max_num_seqs = 0"):
        Cluster(specs(replace(PROFILE, max_num_seqs=0)), trace)
    odd = trace_of(request(0, 0.0, 100, 5, block_hashes=(1, 2), block_tokens=24))
    with pytest.raises(ConfigError, match="does not divide"):
        Cluster(specs(PROFILE), odd)
