"""What the set-ups' routers do with a pool whose load is known."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from steersman.agents.fidelity.aibrix_routers import make_router
from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import Request
from steersman.traces.trace import Trace

BLOCK = 512


def _cluster(arrivals_s: Sequence[float], users: Sequence[int], output: int = 400) -> Cluster:
    requests = [
        Request(
            request_id=str(row),
            arrival_s=at_s,
            input_tokens=3 * BLOCK + 1,
            output_tokens=output,
            block_hashes=tuple(user * 1000 + block for block in range(3)),
            block_tokens=BLOCK,
            tenant=str(user),
        )
        for row, (at_s, user) in enumerate(zip(arrivals_s, users, strict=True))
    ]
    profile = load_profile("h100-llama-3.1-8b")
    specs = [ReplicaSpec(f"replica-{i}", profile) for i in range(8)]
    return Cluster(specs, Trace.from_requests("pool", requests))


def _choices(cluster: Cluster, name: str, seed: int = 0) -> list[int]:
    choose = make_router(name, np.random.default_rng(seed))
    found = []
    while cluster.next_request() is not None:
        found.append(choose(cluster))
        cluster.dispatch(found[-1])
    return found


def test_an_idle_connection_is_used_again_until_it_is_dropped() -> None:
    at_s = [0.0, 8.0, 12.0, 100.0]  # the first ends after some four seconds
    for seed in range(20):
        first, second, third, _ = _choices(_cluster(at_s, [1, 2, 3, 4]), "connections", seed)
        assert first == second == third
    late = {tuple(_choices(_cluster(at_s, [1, 2, 3, 4]), "connections", seed)[2:]) for seed in range(20)}
    assert any(third != last for third, last in late)


def test_busy_connections_are_not_shared() -> None:
    choose = make_router("connections", np.random.default_rng(3))
    cluster = _cluster([0.0] * 64, range(64))
    counts = np.zeros(8)
    while cluster.next_request() is not None:
        choice = choose(cluster)
        counts[choice] += 1
        cluster.dispatch(choice)
    assert counts.max() < 20  # all at random, none on the first connection


@pytest.mark.parametrize("name", ["least-of-two", "prefix"])
def test_load_is_spread(name: str) -> None:
    counts = np.bincount(_choices(_cluster([0.0] * 64, range(64)), name), minlength=8)
    assert np.ptp(counts) <= (1 if name == "prefix" else 8)


def test_a_user_returns_to_his_prefix_and_leaves_it_when_it_is_busy() -> None:
    home, *again = _choices(_cluster([0.0, 20.0, 40.0], [7, 7, 7]), "prefix")
    assert again == [home, home]
    crowd = _choices(_cluster([0.0, *(20.0 + 1e-3 * i for i in range(16))], [7] * 17), "prefix")
    assert len(set(crowd)) > 1


def test_a_session_stays() -> None:
    assert _choices(_cluster([0.0, 0.1, 0.2, 0.3], [5, 6, 5, 6]), "session") == [0, 1, 0, 1]
