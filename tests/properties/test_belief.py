"""The compiled belief of what is cached where is the router's, block for block."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.predictors import ledger as L
from steersman.predictors.prefix_index import PrefixIndex
from tests.env.worlds import request, small_profile, specs, trace_of

PROMPTS = st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 25))


@settings(max_examples=150, deadline=None)
@given(
    st.lists(PROMPTS, min_size=1, max_size=40),
    st.tuples(st.integers(1, 12), st.integers(1, 30)),
)
def test_the_compiled_belief_is_the_routers(
    prompts: list[tuple[int, int, int]], capacities: tuple[int, int]
) -> None:
    requests = []
    for number, (family, shared, more) in enumerate(prompts):
        hashes = [1 + family * 100 + k for k in range(shared)]
        # Blocks of its own come after `shared` of the family's, and some of them recur later.
        hashes += [10_000 * (1 + family + 4 * shared) + (number % 3) * 1000 + k for k in range(more)]
        requests.append(
            request(
                number,
                0.1 * number,
                32 * len(hashes) + 1,
                5,
                block_hashes=tuple(hashes),
                block_tokens=32 if hashes else 0,
            )
        )
    trace = trace_of(*requests)
    if not len(trace.block_hashes):
        return
    replicas = specs(*(small_profile(kv_capacity_tokens=32 * most) for most in capacities))
    cluster = Cluster(replicas, trace)
    belief = cluster.belief
    assert belief is not None
    index = PrefixIndex(capacities)
    for row in range(len(trace)):
        hashes = trace.block_hashes[trace.block_offsets[row] : trace.block_offsets[row + 1]].tolist()
        assert np.array_equal(belief.match(row), index.match(hashes))
        cluster.memory.cluster["now_s"] = float(row)
        belief.insert(cluster.memory, row % 2, row)
        index.insert(row % 2, hashes, float(row))
        assert cluster.state[row % 2, L.CACHE_OLDEST_S] == index.oldest_s(row % 2)
        if row % 7 == 6:
            belief.forget(0)
            index.forget(0)
        if row % 5 == 4:
            belief = belief.copy()
    for row in range(len(trace)):
        hashes = trace.block_hashes[trace.block_offsets[row] : trace.block_offsets[row + 1]].tolist()
        assert np.array_equal(belief.match(row), index.match(hashes))
