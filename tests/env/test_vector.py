from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.vector import ClusterBatch
from steersman.predictors.features import AVERAGED, POOL_FEATURES
from tests.env.worlds import play, request, small_profile, specs, trace_of, worlds

MEANS = POOL_FEATURES[1 : 1 + len(AVERAGED)]
"""Summed in another order."""
PROFILE = small_profile(kv_capacity_tokens=3200, max_num_seqs=32, max_batched_tokens=512)


def cluster(replicas: int, requests: int, seed: int = 0) -> Cluster:
    trace = trace_of(*(request(i, 0.05 * i, 100, 20) for i in range(requests)))
    return Cluster(specs(*[PROFILE] * replicas), trace, seed=seed)


def test_smaller_clusters_are_padded_with_what_may_not_be_chosen() -> None:
    batch = ClusterBatch([cluster(1, 5), cluster(3, 5)], most_replicas=4)
    assert batch.most_replicas == 4
    assert batch.next_requests().tolist() == [0, 0]
    observation = batch.observe()
    assert observation.mask.tolist() == [[True, False, False, False], [True, True, True, False]]
    assert np.all(observation.replicas[0, 1:] == 0)
    assert np.all(np.isfinite(observation.replicas))
    assert observation.pool[:, 0].tolist() == [1, 3]


@given(clusters=st.lists(worlds(), min_size=2, max_size=5), padding=st.integers(0, 20))
@settings(deadline=None, max_examples=60)
def test_every_cluster_is_seen_as_it_is_seen_alone(clusters: list[Cluster], padding: int) -> None:
    width = max(len(cluster.replicas) for cluster in clusters) + padding
    batch = ClusterBatch(clusters, most_replicas=width)
    for step in range(12):
        rows = batch.next_requests()
        together = batch.observe()
        for i in np.flatnonzero(rows >= 0).tolist():
            alone, n = clusters[i].observe(), len(clusters[i].replicas)
            np.testing.assert_array_equal(together.replicas[i, :n], alone.replicas)
            np.testing.assert_array_equal(together.mask[i, :n], alone.mask)
            np.testing.assert_array_equal(together.request[i], alone.request)
            means = np.isin(POOL_FEATURES, MEANS)
            np.testing.assert_allclose(together.pool[i, means], alone.pool[means], rtol=1e-6)
            np.testing.assert_array_equal(together.pool[i, ~means], alone.pool[~means])
            assert not together.mask[i, n:].any()
            assert not together.replicas[i, n:].any()
        batch.dispatch(step % np.array([len(cluster.replicas) for cluster in clusters]), together)


def test_clusters_end_when_they_end() -> None:
    batch = ClusterBatch([cluster(1, 2), cluster(1, 4)])
    seen = []
    for _ in range(5):
        rows = batch.next_requests()
        seen.append(rows.tolist())
        observation = batch.observe()
        assert observation.mask[:, 0].tolist() == (rows >= 0).tolist()
        assert np.all(np.isfinite(observation.pool))
        batch.dispatch(np.zeros(2, dtype=np.int64), observation)
    assert seen == [[0, 0], [1, 1], [-1, 2], [-1, 3], [-1, -1]]
    batch.replace(0, cluster(1, 2))
    assert batch.next_requests().tolist() == [0, -1]


def test_it_grows_like_a_single_cluster() -> None:
    trace = trace_of(*(request(i, 0.0, 20, 3) for i in range(700)))
    alone, member = (Cluster(specs(PROFILE), trace) for _ in range(2))
    batch = ClusterBatch([member])
    while batch.next_requests()[0] >= 0:
        batch.dispatch(np.zeros(1, dtype=np.int64))
    batch.finish(0, 1e9)
    play(alone)
    assert np.array_equal(alone.outcomes().ttft_s, member.outcomes().ttft_s)


def test_misuse_is_told() -> None:
    batch = ClusterBatch([cluster(1, 2), cluster(3, 2)])
    batch.next_requests()
    with pytest.raises(ValueError, match="not all replicas"):
        batch.dispatch(np.array([1, 1]))
    with pytest.raises(ValueError, match="exceed most_replicas"):
        batch.replace(0, cluster(4, 2))
    batch.dispatch(np.array([-1, 2]))
    assert batch.cost_accrued[0] == 42.0


def test_a_large_copy_is_like_a_small_one(monkeypatch: pytest.MonkeyPatch) -> None:
    first = cluster(2, 20)
    small = first.clone()
    monkeypatch.setattr("steersman.env.memory._LARGE", 0)
    large = first.clone()
    assert large.memory.buffer.ctypes.data % 64 == 0
    np.testing.assert_array_equal(large.memory.buffer, first.memory.buffer)
    for each in (small, large):
        while each.next_request() is not None:
            each.dispatch(0)
        each.finish()
    np.testing.assert_array_equal(large.memory.outcomes, small.memory.outcomes)
    assert first.now_s == 0.0, "it stays as it was"
