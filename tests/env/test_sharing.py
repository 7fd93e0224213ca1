"""Replicas that share a GPU: what they may hold, and how they slow each other down."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.outcomes import STATUSES
from steersman.env.placement import check_window
from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.scenario import Conditions, SharedGpu
from steersman.traces.schema import Status
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of, worlds

PROFILE = small_profile(kv_capacity_tokens=16_000, max_num_seqs=64, max_batched_tokens=2048)
PAIR = trace_of(request(0, 0.0, 100, 400), request(1, 0.0, 100, 400))


def shared(**more: Any) -> Conditions:
    return Conditions(sharing=(SharedGpu((0, 1), **more),))


def tpot_s(conditions: Conditions | None, trace: Any = PAIR) -> list[float]:
    cluster = Cluster(specs(PROFILE, PROFILE), trace, conditions=conditions)
    play(cluster, np.arange(len(trace)) % 2)
    assert np.all(cluster.outcomes().ok)
    times: list[float] = cluster.outcomes().tpot_s.tolist()
    return times


def test_two_busy_replicas_in_turn_take_twice_as_long() -> None:
    alone, _ = tpot_s(None)
    assert tpot_s(shared()) == pytest.approx([2 * alone, 2 * alone], rel=0.01)


def test_weights_divide_the_gpu() -> None:
    alone, _ = tpot_s(None)
    heavy, light = tpot_s(shared(weights=(3.0, 1.0)))
    # The heavy one ends first; from then on the light one is alone.
    assert heavy == pytest.approx(alone * 4 / 3, rel=0.01)
    assert light == pytest.approx(alone * (4 / 3 + 1 - 1 / 3), rel=0.01)


def test_without_preemption_a_turn_is_whole_iterations() -> None:
    slow = replace(PROFILE, decode_base_s=0.1)
    cluster = Cluster(specs(slow, PROFILE), PAIR, conditions=shared(preemptive=False))
    play(cluster, np.array([0, 1]))
    fast = cluster.outcomes().tpot_s[1]
    alone, _ = tpot_s(None)
    turn = np.ceil(0.02 / alone) * alone
    other = slow.host_overhead_s + slow.decode_base_s
    assert fast == pytest.approx(alone * (turn + other) / turn, rel=0.05)


def test_an_idle_neighbour_costs_nothing_in_turn_and_its_overhead_under_mps() -> None:
    lone = trace_of(request(0, 0.0, 100, 400))
    alone = tpot_s(None, lone)[0]
    assert tpot_s(shared(), lone)[0] == pytest.approx(alone, rel=1e-12)
    assert tpot_s(shared(mode="mps", overhead=0.04), lone)[0] == pytest.approx(1.04 * alone)


def test_under_mps_replicas_that_ask_for_less_run_side_by_side() -> None:
    alone, _ = tpot_s(None)
    beside = tpot_s(shared(mode="mps", demands=(0.5, 0.4)))
    assert beside == pytest.approx([1.04 * alone] * 2, rel=1e-6)
    crowded = tpot_s(shared(mode="mps", demands=(0.9, 0.6)))
    assert crowded == pytest.approx([1.04 * 1.5 * alone] * 2, rel=0.01)


@settings(max_examples=40, deadline=None)
@given(worlds(), st.sampled_from(["time-slice", "mps"]), st.booleans())
def test_sharing_loses_nothing_and_is_never_faster(world: Cluster, mode: str, preemptive: bool) -> None:
    if len(world.replicas) < 2:
        return
    conditions = shared(mode=mode, preemptive=preemptive)
    cluster = Cluster(world.replicas, world.trace, conditions=conditions)
    while (row := cluster.next_request()) is not None:
        check_memory(cluster.memory)
        cluster.dispatch(row % 2)
    cluster.finish(1e9)
    check_memory(cluster.memory)
    assert not np.any(cluster.outcomes().status == STATUSES.index(Status.UNFINISHED))
    alone = Cluster(world.replicas, world.trace)
    play(alone, np.arange(len(world.trace)) % 2)
    busy = "busy_s"
    if np.array_equal(cluster.memory.replicas["iterations"], alone.memory.replicas["iterations"]):
        assert np.all(cluster.memory.replicas[busy] >= alone.memory.replicas[busy] * (1 - 1e-12))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"memory_reserve": 0.2}, "memory_reserve = 0.2 must be within 0.05 and 0.08"),
        ({"slice_ms": 5.0}, "slice_ms = 5 must be within 10 and 50"),
        ({"mode": "mps", "overhead": 0.2}, "overhead = 0.2 must be within 0.03 and 0.05"),
        ({"weights": (1.0,)}, r"weights = \[1.0\] must be 2 positive numbers"),
        ({"demands": (1.0, 0.0)}, "demands"),
    ],
)
def test_impossible_sharing_is_refused(more: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Cluster(specs(PROFILE, PROFILE), PAIR, conditions=shared(**more))


@pytest.mark.parametrize("replicas", [(0, 7), (0, 0), (0,)])
def test_replicas_must_be_there_once_and_two(replicas: tuple[int, ...]) -> None:
    with pytest.raises(ConfigError, match="sharing of replicas"):
        Cluster(specs(PROFILE, PROFILE), PAIR, conditions=Conditions(sharing=(SharedGpu(replicas),)))


def test_memory_rules_are_told_with_the_arithmetic() -> None:
    large = replace(PROFILE, kv_capacity_tokens=400_000)
    with pytest.raises(ConfigError, match=r"= 63\.8 GiB .* more than 70% of 70\.8 GiB .* = 49\.5 GiB"):
        Cluster(specs(large, PROFILE), PAIR, conditions=shared())
    half = replace(PROFILE, kv_capacity_tokens=200_000)
    with pytest.raises(ConfigError, match=r"39\.4 \+ 39\.4 = 78\.7 GiB .* exceed 70\.8 GiB"):
        Cluster(specs(half, half), PAIR, conditions=shared())
    other = replace(PROFILE, gpu="h100-80gb")
    with pytest.raises(ConfigError, match="replicas that share are on the same"):
        Cluster(specs(PROFILE, other), PAIR, conditions=shared())


def test_a_trace_beyond_the_context_window_is_told_with_its_first_row() -> None:
    trace = trace_of(request(0, 0.0, 100, 4), request(1, 1.0, 131_072, 1), request(2, 2.0, 200_000, 5))
    with pytest.raises(TraceError, match=r"2 of 3 requests exceed .* 131072 tokens, the first in row 1"):
        check_window(specs(PROFILE), trace)


def test_a_trace_longer_than_any_kv_cache_is_refused_with_the_first_row() -> None:
    short = replace(PROFILE, kv_capacity_tokens=1000)
    trace = trace_of(request(0, 0.0, 100, 10), request(1, 1.0, 995, 10))
    check_window(specs(short, PROFILE), trace)
    with pytest.raises(
        TraceError, match=r"1 of 2 requests exceed the KV cache of any replica.* in row 1"
    ):
        check_window(specs(short), trace)
