"""Memory that running requests need is lost to prefixes, and the router notices."""

from __future__ import annotations

import numpy as np

from steersman.env.cluster import Cluster
from steersman.predictors import ledger as L
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.trace import Trace
from tests.env.worlds import request, small_profile, specs, trace_of

PREFIX = tuple(range(1, 33))


def prompts(count: int, output_tokens: int, *, every_s: float) -> Trace:
    """The same prompt of 1024 tokens, again and again."""
    return trace_of(
        *(
            request(
                number,
                every_s * number,
                32 * len(PREFIX) + 1,
                output_tokens,
                block_hashes=tuple(1000 * (number % 8) + k for k in PREFIX),
                block_tokens=32,
            )
            for number in range(count)
        )
    )


def played(trace: Trace, kv_capacity_tokens: int) -> Cluster:
    cluster = Cluster(specs(small_profile(kv_capacity_tokens=kv_capacity_tokens)), trace)
    while cluster.next_request() is not None:
        cluster.dispatch(0)
    return cluster


def test_a_cache_with_room_is_trusted() -> None:
    cluster = played(prompts(120, 10, every_s=0.5), 40_000)
    assert cluster.state[0, L.CACHE_TRUST] > 0.99


def test_a_cache_that_running_requests_have_taken_is_not() -> None:
    cluster = played(prompts(400, 2000, every_s=0.05), 9_000)
    cluster.finish()
    outcomes = cluster.outcomes()
    found = outcomes.cached_tokens.sum() / outcomes.input_tokens.sum()
    assert found < 0.5, "eight prompts fit its memory, but not beside those that run"
    assert cluster.state[0, L.CACHE_TRUST] < 0.7


def test_what_is_not_trusted_counts_as_uncached() -> None:
    trace = prompts(9, 10, every_s=1.0)
    cluster = Cluster(specs(small_profile(kv_capacity_tokens=40_000)), trace)
    for _ in range(8):
        cluster.next_request()
        cluster.dispatch(0)
    assert cluster.next_request() == 8
    cluster.state[0, L.CACHE_TRUST] = 0.25
    features = cluster.observe().replicas[0]
    matched = features[REPLICA_INDEX["match_fraction"]] * trace.input_tokens[8]
    np.testing.assert_allclose(matched, 1024.0, rtol=1e-6)
    np.testing.assert_allclose(
        features[REPLICA_INDEX["uncached_tokens"]], trace.input_tokens[8] - 0.25 * 1024.0, rtol=1e-6
    )
