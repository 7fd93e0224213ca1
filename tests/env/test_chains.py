from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.chains import chained
from steersman.env.cluster import Cluster
from tests.env.worlds import check_memory, play, request, small_profile, specs, trace_of

PROMPTS = st.lists(st.lists(st.integers(-1, 4), max_size=4), max_size=6)


def told(prompts: list[list[int]]) -> bool:
    hashes = np.array([h for prompt in prompts for h in prompt], dtype=np.int64)
    return chained(hashes, np.cumsum([0, *map(len, prompts)]))


@settings(max_examples=500, deadline=None)
@given(PROMPTS)
def test_a_chained_hash_stands_for_one_prefix(prompts: list[list[int]]) -> None:
    prefixes: dict[int, set[tuple[int, ...]]] = {}
    for prompt in prompts:
        for k, block in enumerate(prompt):
            prefixes.setdefault(block, set()).add(tuple(prompt[:k]))
    assert told(prompts) == all(len(before) == 1 for before in prefixes.values())


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.integers(0, 2), max_size=8), max_size=8))
def test_hashes_of_prefixes_are_chained(prompts: list[list[int]]) -> None:
    assert told([[hash(tuple(p[: k + 1])) for k in range(len(p))] for p in prompts])


@pytest.mark.parametrize(
    "prompts",
    [
        [[1, 1]],
        [[1, 2, 1]],
        [[1, 2], [2]],
        [[1, 3], [2, 3]],
    ],
)
def test_a_cluster_serves_hashes_that_are_not_chained(prompts: list[list[int]]) -> None:
    assert not told(prompts)
    requests = [
        request(i, 0.01 * i, 16 * len(prompt) + 1, 9, block_hashes=tuple(prompt), block_tokens=16)
        for i, prompt in enumerate(prompts * 3)
    ]
    outcomes = []
    for stepped in (True, False):
        cluster = Cluster(
            specs(small_profile(kv_capacity_tokens=80)), trace_of(*requests), stepped=stepped
        )
        assert cluster.memory.cluster["segments"][0] == 0
        play(cluster)
        check_memory(cluster.memory)
        outcomes.append(cluster.outcomes())
    assert outcomes[0].ok.all()
    assert outcomes[0].cached_tokens.sum() > 0
    assert np.array_equal(outcomes[0].cached_tokens, outcomes[1].cached_tokens)
    assert np.allclose(outcomes[0].e2e_s, outcomes[1].e2e_s, rtol=1e-9)
