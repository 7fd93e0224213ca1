"""Prefill-first and static batching: what may share an iteration, and who waits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.profiles import ProfileSettings, load_profile
from steersman.env.scenario import ReplicaGroup
from steersman.traces.schema import Batching, HardwareProfile
from steersman.traces.settings import parse_settings
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of

ROOMY = {"kv_capacity_tokens": 400_000, "max_num_seqs": 64, "max_batched_tokens": 2048}


def _profile(batching: Batching, **changes: int) -> HardwareProfile:
    return replace(small_profile(**(ROOMY | changes)), batching=batching)


def _prompts_s(profile: HardwareProfile, *prompts: int) -> float:
    prefill_s = (
        profile.prefill_base_s
        + profile.prefill_token_s * sum(prompts)
        + profile.prefill_token2_s * sum(p * p for p in prompts)
    )
    return profile.host_overhead_s + max(profile.decode_base_s, prefill_s)


def _decodes_s(profile: HardwareProfile, *contexts: int) -> float:
    return (
        profile.host_overhead_s
        + profile.decode_base_s
        + profile.decode_seq_s * len(contexts)
        + profile.decode_context_s * sum(contexts)
    )


def test_a_prompt_stops_what_decodes_under_prefill_first() -> None:
    profile = _profile(Batching.PREFILL_FIRST)
    cluster = Cluster(specs(profile), trace_of(request(0, 0.0, 500, 3), request(1, 0.001, 700, 1)))
    play(cluster)
    outcomes = cluster.outcomes()
    first_s = _prompts_s(profile, 500)
    second_s = first_s + _prompts_s(profile, 700)
    assert outcomes.ttft_s[0] == pytest.approx(first_s)
    assert outcomes.e2e_s[1] + 0.001 == pytest.approx(second_s)
    end_s = second_s + _decodes_s(profile, 501) + _decodes_s(profile, 502)
    assert outcomes.e2e_s[0] == pytest.approx(end_s)


def test_whole_prompts_share_an_iteration_up_to_the_budget() -> None:
    profile = _profile(Batching.PREFILL_FIRST, max_batched_tokens=1000)
    rows = [request(0, 0.0, 3000, 1), *(request(i, 0.001, 400, 1) for i in range(1, 4))]
    cluster = Cluster(specs(profile), trace_of(*rows))
    play(cluster)
    outcomes = cluster.outcomes()
    alone_s = _prompts_s(profile, 3000)
    pair_s = alone_s + _prompts_s(profile, 400, 400)
    assert outcomes.ttft_s[0] == pytest.approx(
        alone_s
    )  # longer than the budget: goes alone, in one piece
    assert outcomes.ttft_s[1:3] + 0.001 == pytest.approx([pair_s, pair_s])
    assert outcomes.ttft_s[3] + 0.001 == pytest.approx(pair_s + _prompts_s(profile, 400))


def test_a_static_batch_admits_nobody_until_all_have_ended() -> None:
    profile = _profile(Batching.STATIC)
    rows = (request(0, 0.0, 100, 50), request(1, 0.001, 100, 2), request(2, 0.0015, 100, 20))
    cluster = Cluster(specs(profile), trace_of(*rows))
    play(cluster)
    outcomes = cluster.outcomes()
    ends_s = outcomes.arrival_s + outcomes.e2e_s
    both_s = ends_s[0] + _prompts_s(profile, 100, 100)
    assert outcomes.arrival_s[1:] + outcomes.ttft_s[1:] == pytest.approx([both_s, both_s])


def test_continuous_batching_ends_sooner_than_static() -> None:
    rng = np.random.default_rng(1)
    rows = [request(i, 0.05 * i, 200, int(rng.integers(5, 300))) for i in range(100)]
    last_s = {}
    for batching in Batching:
        cluster = Cluster(specs(_profile(batching, max_num_seqs=8)), trace_of(*rows))
        play(cluster)
        last_s[batching] = cluster.now_s
    assert last_s[Batching.CHUNKED] < last_s[Batching.STATIC]
    assert last_s[Batching.PREFILL_FIRST] < last_s[Batching.STATIC]


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.floats(0.0, 0.2), st.integers(1, 300), st.integers(1, 80)), min_size=1, max_size=30
    ),
    st.integers(24, 60),
    st.integers(1, 8),
    st.integers(1, 300),
    st.sampled_from([Batching.PREFILL_FIRST, Batching.STATIC]),
)
def test_every_request_ends_in_order_of_admission_and_memory_adds_up(
    rows: list[tuple[float, int, int]], blocks: int, most: int, budget: int, batching: Batching
) -> None:
    profile = replace(
        small_profile(kv_capacity_tokens=16 * blocks, max_num_seqs=most, max_batched_tokens=budget),
        batching=batching,
    )
    at_s = np.cumsum([gap for gap, *_ in rows])
    cluster = Cluster(
        specs(profile), trace_of(*(request(i, float(at_s[i]), p, o) for i, (_, p, o) in enumerate(rows)))
    )
    while cluster.next_request() is not None:
        cluster.dispatch(0)
        check_memory(cluster.memory)
    cluster.finish(drain_s=1e9)
    check_memory(cluster.memory)
    outcomes = cluster.outcomes()
    fits = np.array([p + o <= 16 * blocks for _, p, o in rows])
    assert (outcomes.ok == fits).all()
    assert (
        outcomes.output_tokens[fits] == [o for (_, _, o), f in zip(rows, fits, strict=True) if f]
    ).all()
    first_s = (outcomes.arrival_s + outcomes.ttft_s)[fits]
    assert all(one <= other + 1e-9 for one, other in pairwise(first_s))


def test_batching_is_a_key_of_profiles_and_of_replica_groups() -> None:
    group = parse_settings({"profile": "x", "batching": "static"}, ReplicaGroup, source="test")
    assert group.batching is Batching.STATIC
    assert ProfileSettings.model_fields["batching"].default is Batching.CHUNKED
    assert load_profile("a100-llama-3.1-8b").batching is Batching.CHUNKED
