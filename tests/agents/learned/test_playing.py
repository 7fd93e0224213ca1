from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from steersman.agents.learned.playing import DRAIN_S, SLOWEST, play, warm_up
from steersman.traces.schema import Observation
from tests.agents.learned.scenes import make_practice

AT_ONCE = np.zeros(1)


def first(seen: Observation) -> NDArray[np.int64]:
    return np.asarray(seen.mask.argmax(axis=-1), dtype=np.int64)


def refuse(seen: Observation) -> NDArray[np.int64]:
    return np.full(len(seen.mask), -1, dtype=np.int64)


def test_the_tail_is_that_of_the_slowest_requests() -> None:
    cluster = make_practice().draw(np.random.default_rng(0))
    played = play([cluster], first, AT_ONCE)
    again = cluster.clone()
    while again.next_request() is not None:
        again.dispatch(int(first(again.observe())))
    again.finish(DRAIN_S)
    slowest = np.sort(again.outcomes().ttft_s)[-int(np.ceil(SLOWEST * len(cluster.trace))) :]
    assert played.tail_s[0] == pytest.approx(slowest.mean())
    assert played.cost[0] == pytest.approx(again.cost_accrued)


def test_who_never_gets_a_token_has_waited_to_the_end() -> None:
    cluster = make_practice().draw(np.random.default_rng(0))
    assert play([cluster], refuse, AT_ONCE).tail_s[0] == DRAIN_S
    assert cluster.cost_accrued == 0.0, "it stays as it was"


def test_what_is_played_before_does_not_count() -> None:
    cluster = make_practice().draw(np.random.default_rng(0))
    middle_s = np.array([np.median(cluster.trace.arrival_s)])
    whole, rest = (play([cluster], first, since_s) for since_s in (AT_ONCE, middle_s))
    assert 0.0 < rest.cost[0] < whole.cost[0]
    warm = warm_up([cluster], first, middle_s)
    assert play(warm, first, middle_s).cost[0] == pytest.approx(rest.cost[0])
    assert play(warm, first, middle_s).tail_s[0] == rest.tail_s[0]


def test_a_warm_cluster_stands_where_it_was_played_to() -> None:
    clusters = [make_practice().draw(np.random.default_rng(seed)) for seed in range(2)]
    until_s = np.array([cluster.trace.arrival_s[10] for cluster in clusters])
    for warm, end_s in zip(warm_up(clusters, first, until_s), until_s, strict=True):
        assert warm.now_s <= end_s
        assert np.isfinite(warm.memory.outcomes["arrival_s"]).sum() == 11
    assert all(cluster.now_s == 0.0 for cluster in clusters), "they stay as they were"
