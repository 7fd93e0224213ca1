"""A request's features times the profile's numbers are its times, whatever the engine does."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.iterations import cost_of, play_iterations, with_cost
from steersman.env.profiles import load_profile
from steersman.traces.schema import Batching
from tests.env.worlds import play, request, small_profile, specs, trace_of

ROWS = st.lists(
    st.tuples(st.floats(0.0, 0.2), st.integers(1, 300), st.integers(1, 80)), min_size=1, max_size=30
)


@settings(max_examples=60, deadline=None)
@given(ROWS, st.integers(24, 60), st.integers(1, 8), st.integers(1, 300), st.sampled_from(Batching))
def test_features_add_up_to_the_times_of_the_cluster(
    rows: list[tuple[float, int, int]], blocks: int, most: int, budget: int, batching: Batching
) -> None:
    profile = replace(
        small_profile(kv_capacity_tokens=16 * blocks, max_num_seqs=most, max_batched_tokens=budget),
        batching=batching,
    )
    at_s = np.cumsum([gap + 1e-6 for gap, *_ in rows])
    trace = trace_of(*(request(i, float(at_s[i]), p, o) for i, (_, p, o) in enumerate(rows)))
    played = play_iterations(profile, trace)
    cluster = Cluster(specs(profile), trace, stepped=True)
    play(cluster)
    outcomes = cluster.outcomes()
    ok = outcomes.ok
    np.testing.assert_array_equal(played.ttft_s[ok], outcomes.ttft_s[ok])
    np.testing.assert_array_equal(played.e2e_s[ok], outcomes.e2e_s[ok])
    added = played.features[ok] @ cost_of(profile)
    np.testing.assert_allclose(added[:, 0], outcomes.ttft_s[ok], rtol=1e-9)
    np.testing.assert_allclose(added[:, 1], outcomes.e2e_s[ok], rtol=1e-9)


def test_costs_go_into_a_profile_and_come_out_again() -> None:
    profile = load_profile("h100-llama-3.1-8b")
    cost = cost_of(profile) * np.array([1.1, 0.9, 1.2, 1.3, 0.8, 1.0])
    assert cost_of(with_cost(profile, cost)) == pytest.approx(cost)
    tiny = with_cost(profile, cost * np.array([1.0, 1e-3, 1.0, 1.0, 1.0, 1.0]))
    assert tiny.prefill_base_s >= 0.0
    assert tiny.decode_base_s > 0.0
