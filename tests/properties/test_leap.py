"""Leaping over iterations changes nothing: the stepped engine is what it must equal."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env import engine
from steersman.env.cluster import Cluster
from steersman.env.layout import FREE
from steersman.traces.scenario import Staleness
from tests.env.worlds import check_memory, play, worlds

RUNS = settings(max_examples=60, deadline=None)


def twins(world: Cluster) -> tuple[Cluster, Cluster]:
    """The same cluster in both engines; arrivals apart from the ends of iterations."""
    arrival_s = world.trace.arrival_s + 1e-6 * np.arange(1, len(world.trace) + 1) * np.sqrt(0.5)
    trace = world.trace.replace(
        arrival_s=arrival_s, think_time_s=world.trace.think_time_s + 1e-6 * np.sqrt(0.2)
    )
    common = world.memory.cluster[0]
    staleness = Staleness(
        float(common["scrape_interval_s"]),
        float(common["scrape_jitter"]),
        float(common["scrape_loss"]),
    )
    stepped, leaping = (
        Cluster(
            world.replicas,
            trace,
            staleness=staleness,
            prefix_cache=bool(common["prefix_cache"]),
            seed=int(common["seed"]),
            stepped=way,
        )
        for way in (True, False)
    )
    return stepped, leaping


def assert_same(stepped: Cluster, leaping: Cluster) -> None:
    """Times to rounding, counts exactly."""
    a, b = stepped.outcomes(), leaping.outcomes()
    for name in ("status", "replica", "output_tokens", "cached_tokens", "preemptions"):
        assert np.array_equal(getattr(a, name), getattr(b, name)), name
    for name in ("arrival_s", "ttft_s", "tpot_s", "e2e_s"):
        assert np.allclose(getattr(a, name), getattr(b, name), rtol=1e-9, equal_nan=True), name
    assert_same_view(stepped, leaping)
    for name in ("iterations", "preemptions", "prefix_queries", "prefix_hits"):
        assert np.array_equal(stepped.memory.replicas[name], leaping.memory.replicas[name]), name
    assert np.allclose(stepped.memory.replicas["busy_s"], leaping.memory.replicas["busy_s"], rtol=1e-9)


def assert_same_view(stepped: Cluster, leaping: Cluster) -> None:
    """What the router knows, and the cost."""
    assert np.isclose(stepped.now_s, leaping.now_s, rtol=1e-9)
    assert np.allclose(stepped.state, leaping.state, rtol=1e-9, atol=1e-9)
    assert np.isclose(stepped.cost_accrued, leaping.cost_accrued, rtol=1e-9)


@RUNS
@given(worlds())
def test_leaping_equals_stepping(world: Cluster) -> None:
    stepped, leaping = twins(world)
    while (row := stepped.next_request()) is not None:
        assert leaping.next_request() == row
        assert_same_view(stepped, leaping)
        assert np.array_equal(stepped.match_tokens(), leaping.match_tokens())
        stepped.dispatch(row % len(world.replicas))
        leaping.dispatch(row % len(world.replicas))
    assert leaping.next_request() is None
    stepped.finish(1e9)
    leaping.finish(1e9)
    assert_same(stepped, leaping)


@RUNS
@given(worlds(), st.integers(0, 20), st.floats(0.0, 1.0))
def test_clones_and_failures_too(world: Cluster, when: int, drain_s: float) -> None:
    stepped, leaping = twins(world)
    for _ in range(when):
        row = stepped.next_request()
        if row is None:
            break
        assert leaping.next_request() == row
        stepped.dispatch(row % len(world.replicas))
        leaping.dispatch(row % len(world.replicas))
    twin = leaping.clone()
    broken, broken_leaping = stepped.clone(), leaping.clone()
    check_memory(leaping.memory)
    play(stepped)
    play(leaping)
    play(twin)
    assert_same(stepped, leaping)
    assert_same(stepped, twin)
    broken.set_health(0, False)
    broken_leaping.set_health(0, False)
    check_memory(broken_leaping.memory)
    for cluster in (broken, broken_leaping):
        while (row := cluster.next_request()) is not None:
            cluster.dispatch(row % len(world.replicas))
        cluster.finish(drain_s)
    assert_same(broken, broken_leaping)


@RUNS
@given(worlds())
def test_writing_the_batch_down_changes_nothing(world: Cluster) -> None:
    _, leaping = twins(world)
    settled = leaping.clone()
    while (row := leaping.next_request()) is not None:
        assert settled.next_request() == row
        engine.settle(settled.memory.address)
        leaping.dispatch(row % len(world.replicas))
        settled.dispatch(row % len(world.replicas))
    leaping.finish(1e9)
    settled.finish(1e9)
    assert_same(settled, leaping)


@RUNS
@given(worlds(), st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30)), max_size=6))
def test_cancelling_on_a_leaping_replica(world: Cluster, cancels: list[tuple[int, int]]) -> None:
    """Each pair: at which decision a client leaves, and the row of its request."""
    stepped, leaping = twins(world)
    turn = 0
    while (row := stepped.next_request()) is not None:
        assert leaping.next_request() == row
        for leaves in (leaves for when, leaves in cancels if when == turn):
            assert _cancel(stepped, leaves) == _cancel(leaping, leaves)
            check_memory(stepped.memory)
            check_memory(leaping.memory)
        assert_same_view(stepped, leaping)
        for cluster in (stepped, leaping):
            cluster.dispatch(row % len(world.replicas))
        turn += 1
    stepped.finish(1e9)
    leaping.finish(1e9)
    assert_same(stepped, leaping)


def _cancel(cluster: Cluster, row: int) -> bool:
    """The client of a request leaves; False if none is in flight."""
    sequences = cluster.memory.sequences
    slots = np.flatnonzero((sequences["state"] != FREE) & (sequences["row"] == row))
    for slot in slots:
        engine.cancel(cluster.memory.address, int(slot))
    return len(slots) > 0


@RUNS
@given(worlds(), st.integers(0, 20), st.sampled_from(("drain", "slow", "restart")))
def test_operating_a_leaping_cluster(world: Cluster, when: int, what: str) -> None:
    stepped, leaping = twins(world)
    turn = 0
    while (row := stepped.next_request()) is not None:
        assert leaping.next_request() == row
        for cluster in (stepped, leaping):
            if turn == when:
                _operate(cluster, what)
                check_memory(cluster.memory)
        assert stepped.phases == leaping.phases
        assert np.array_equal(stepped.match_tokens(), leaping.match_tokens())
        assert_same_view(stepped, leaping)
        for cluster in (stepped, leaping):
            cluster.dispatch(row % len(world.replicas))
        turn += 1
    stepped.finish(1e9)
    leaping.finish(1e9)
    assert_same(stepped, leaping)
    assert np.allclose(stepped.billed_s, leaping.billed_s, rtol=1e-9)


def _operate(cluster: Cluster, what: str) -> None:
    if what == "slow":
        cluster.set_slowdown(0, 2.0)
    else:
        cluster.drain(0)
    if what == "restart":
        cluster.start(0, cold_start_s=0.5)
