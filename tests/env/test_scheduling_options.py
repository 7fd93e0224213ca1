"""Preemption for higher classes, LoRA adapters and pipeline stages."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.outcomes import STATUSES
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Adapters, Conditions
from steersman.traces.schema import Priority, Status
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of, worlds

PROFILE = small_profile(kv_capacity_tokens=16_000, max_num_seqs=64, max_batched_tokens=2048)
OVERTAKE = Conditions(priority_preemption=True)


def test_a_higher_class_takes_a_slot_at_the_next_boundary() -> None:
    one = replace(PROFILE, max_num_seqs=1)
    trace = trace_of(
        request(0, 0.0, 100, 200, priority=Priority.BATCH),
        request(1, 0.5, 100, 10, priority=Priority.INTERACTIVE),
    )
    polite = Cluster(specs(one), trace)
    play(polite)
    cluster = Cluster(specs(one), trace, conditions=OVERTAKE)
    play(cluster)
    before, after = polite.outcomes(), cluster.outcomes()
    assert before.ttft_s[1] > 1.0
    # The running iteration is not cut short; then the prompt is computed.
    assert after.ttft_s[1] < 0.1
    assert after.preemptions.tolist() == [1, 0]
    assert np.all(after.ok)


def test_equals_do_not_preempt_each_other() -> None:
    one = replace(PROFILE, max_num_seqs=1)
    trace = trace_of(*(request(i, 0.1 * i, 100, 50, priority=Priority.BATCH) for i in range(4)))
    polite, cluster = Cluster(specs(one), trace), Cluster(specs(one), trace, conditions=OVERTAKE)
    play(polite)
    play(cluster)
    assert cluster.outcomes().preemptions.sum() == 0
    assert np.allclose(polite.outcomes().e2e_s, cluster.outcomes().e2e_s, rtol=1e-12)


@settings(max_examples=60, deadline=None)
@given(worlds())
def test_with_overtaking_nothing_is_lost(world: Cluster) -> None:
    cluster = Cluster(world.replicas, world.trace, conditions=OVERTAKE)
    while (row := cluster.next_request()) is not None:
        cluster.dispatch(row % len(cluster.replicas))
        check_memory(cluster.memory)
    cluster.finish(1e9)
    check_memory(cluster.memory)
    outcomes = cluster.outcomes()
    assert not np.any(outcomes.status == STATUSES.index(Status.UNFINISHED))
    assert np.array_equal(outcomes.output_tokens[outcomes.ok], cluster.trace.output_tokens[outcomes.ok])


def test_an_adapter_is_loaded_at_first_use_and_evicted_last_used_first() -> None:
    names = ("a", "a", "b", "c", "b", "a")
    trace = trace_of(*(request(i, 10.0 * i, 100, 5, lora_adapter=name) for i, name in enumerate(names)))
    free = Cluster(specs(PROFILE), trace)
    play(free)
    cluster = Cluster(specs(PROFILE), trace, conditions=Conditions(adapters=Adapters(2, 0.7)))
    play(cluster)
    loaded = cluster.outcomes().ttft_s - free.outcomes().ttft_s
    assert loaded == pytest.approx([0.7, 0.0, 0.7, 0.7, 0.0, 0.7])
    assert cluster.memory.replicas["adapter_loads"][0] == 4


def test_a_request_waits_while_all_places_are_in_use() -> None:
    trace = trace_of(
        request(0, 0.0, 100, 200, lora_adapter="a"),
        request(1, 0.1, 100, 5, lora_adapter="b"),
        request(2, 0.2, 100, 5),
    )
    cluster = Cluster(specs(PROFILE), trace, conditions=Conditions(adapters=Adapters(1, 0.0)))
    play(cluster)
    o = cluster.outcomes()
    assert np.all(o.ok)
    assert o.arrival_s[1] + o.ttft_s[1] > o.e2e_s[0]
    with pytest.raises(ConfigError, match="most must be at least 1"):
        Cluster(specs(PROFILE), trace, conditions=Conditions(adapters=Adapters(0, 0.0)))


def staged(stages: int, hop_s: float = 0.0) -> Cluster:
    profile = replace(PROFILE, pipeline_parallel=stages, pipeline_hop_s=hop_s)
    trace = trace_of(*(request(i, 0.0, 100, 200) for i in range(8)))
    return Cluster(specs(profile), trace)


def test_a_lone_request_passes_all_stages() -> None:
    trace = trace_of(request(0, 0.0, 100, 50))
    whole = Cluster(specs(PROFILE), trace)
    profile = replace(PROFILE, pipeline_parallel=4, pipeline_hop_s=0.001)
    piped = Cluster(specs(profile), trace)
    play(whole)
    play(piped)
    assert piped.outcomes().tpot_s[0] == pytest.approx(whole.outcomes().tpot_s[0] + 0.004)
    assert piped.outcomes().ttft_s[0] == pytest.approx(whole.outcomes().ttft_s[0] + 0.004)


def test_stages_work_on_different_batches() -> None:
    """Weights are read once per batch: two batches at once do nearly twice the work."""
    profile = replace(PROFILE, max_num_seqs=8)
    trace = trace_of(*(request(i, 0.0, 16, 200) for i in range(32)))
    ends = []
    for stages in (1, 2, 4):
        cluster = Cluster(specs(replace(profile, pipeline_parallel=stages)), trace)
        play(cluster)
        assert np.all(cluster.outcomes().ok)
        ends.append(cluster.now_s)
    assert all(later <= sooner * 1.05 for sooner, later in pairwise(ends))
    wide = Cluster(specs(replace(profile, max_num_seqs=16, pipeline_parallel=2)), trace)
    play(wide)
    assert wide.now_s == pytest.approx(ends[0] / 2, rel=0.15)


@settings(max_examples=60, deadline=None)
@given(worlds(), st.integers(2, 4), st.sampled_from([None, 0.3]), st.booleans())
def test_with_stages_nothing_is_lost(
    world: Cluster, stages: int, patience_s: float | None, overtake: bool
) -> None:
    replicas = tuple(
        replace(spec, profile=replace(spec.profile, pipeline_parallel=stages if i != 1 else 1))
        for i, spec in enumerate(world.replicas)
    )
    conditions = Conditions(
        patience_s=patience_s, priority_preemption=overtake, adapters=Adapters(2, 0.01)
    )
    cluster = Cluster(replicas, world.trace, conditions=conditions)
    last_s = 0.0
    while (row := cluster.next_request()) is not None:
        assert cluster.now_s >= last_s
        last_s = cluster.now_s
        if row == 12:
            cluster.set_health(0, False)
        if row == 15:
            cluster.set_health(0, True)
        check_memory(cluster.memory)
        cluster.dispatch(row % len(replicas))
        check_memory(cluster.memory)
        owners = cluster.memory.replicas
        idle = np.isinf(owners["iteration_end_s"])
        work = owners["waiting"] + owners["running"] + owners["in_flight"]
        assert not np.any(idle & (work > 0))
    twin = cluster.clone()
    for each in (cluster, twin):
        each.finish(1e9)
        check_memory(each.memory)
    outcomes = cluster.outcomes()
    assert np.array_equal(outcomes.e2e_s, twin.outcomes().e2e_s, equal_nan=True)
    assert not np.any(outcomes.status == STATUSES.index(Status.UNFINISHED))
    assert np.array_equal(outcomes.output_tokens[outcomes.ok], cluster.trace.output_tokens[outcomes.ok])
    assert not cluster.memory.replicas["held_blocks"].any()
    sizes = [spec.profile.max_num_seqs for spec in replicas]
    assert cluster.memory.replicas["max_num_seqs"].tolist() == sizes
