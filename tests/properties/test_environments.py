"""What must hold of the environments whatever the configuration and whatever is chosen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.cluster import Cluster
from steersman.env.gym import RoutingEnv, ScalingEnv, VectorRoutingEnv, VectorScalingEnv
from steersman.env.lifecycle import Phase
from steersman.env.outcomes import STATUSES
from steersman.env.scaling import ScalingRules
from steersman.traces.scenario import ChangeKind, Conditions, ReplicaChange, ReplicaSpec, Staleness
from steersman.traces.schema import Priority, Status
from tests.env.worlds import check_memory, request, small_profile, trace_of

RUNS = settings(max_examples=25, deadline=None)
SEEDS = st.integers(0, 2**20)
MOST_REPLICAS = 4


class AnyWorld:
    """Clusters of unlike replicas, some on standby, to which anything may happen."""

    most_replicas = MOST_REPLICAS

    def draw(self, rng: np.random.Generator) -> Cluster:
        count = int(rng.integers(1, MOST_REPLICAS + 1))
        replicas = tuple(self._spec(rng, number) for number in range(count))
        length = int(rng.integers(1, 40))
        times = np.cumsum(rng.exponential(0.1, length))
        rows = []
        for number in range(length):
            prompt = int(rng.integers(1, 300))
            parent = int(rng.integers(0, number)) if number and rng.random() < 0.3 else None
            rows.append(
                request(
                    number,
                    float(times[number]),
                    prompt,
                    int(rng.integers(1, 60)),
                    priority=Priority(int(rng.integers(0, 4))),
                    block_hashes=tuple(range(prompt // 32)) if rng.random() < 0.5 else (),
                    block_tokens=32,
                    session_id=None if parent is None else f"s{parent}",
                    parent_id=None if parent is None else f"r{parent}",
                    think_time_s=float(rng.random()),
                )
            )
        kinds = list(ChangeKind)
        changes = [
            ReplicaChange(
                float(rng.uniform(0.0, 5.0)),
                int(rng.integers(0, count)),
                kinds[int(rng.integers(0, len(kinds)))],
                float(rng.uniform(0.5, 3.0)),
            )
            for _ in range(int(rng.integers(0, 4)))
        ]
        return Cluster(
            replicas,
            trace_of(*rows),
            staleness=Staleness(float(rng.uniform(0.01, 1.0)), 0.5, float(rng.choice([0.0, 0.5]))),
            prefix_cache=bool(rng.random() < 0.5),
            seed=int(rng.integers(0, 1000)),
            conditions=Conditions(
                changes=tuple(changes),
                priority_preemption=bool(rng.random() < 0.3),
                patience_s=float(rng.uniform(0.1, 3.0)) if rng.random() < 0.3 else None,
            ),
        )

    def _spec(self, rng: np.random.Generator, number: int) -> ReplicaSpec:
        profile = small_profile(
            kv_capacity_tokens=int(rng.integers(6, 60)) * 16,
            max_num_seqs=int(rng.integers(1, 6)),
            max_batched_tokens=int(rng.integers(1, 200)),
        )
        if rng.random() < 0.3:
            profile = replace(profile, decode_base_by_batch_s=((1, 0.004), (4, 0.02)))
        slowdown = float(rng.uniform(1.0, 2.0))
        standby = number > 0 and bool(rng.random() < 0.5)
        return ReplicaSpec(f"replica-{number}", profile, slowdown, standby, float(rng.uniform(0.0, 2.0)))


def rules(rng: np.random.Generator) -> ScalingRules:
    return ScalingRules(
        interval_s=float(rng.uniform(0.05, 3.0)),
        changes=(-2, -1, 0, 1, 3),
        cooldown_s=float(rng.choice([0.0, 1.0])),
        budget_usd_per_hour=float(rng.uniform(1.0, 10.0)) if rng.random() < 0.5 else None,
    )


def nothing_is_lost(cluster: Cluster) -> None:
    """Every request ended, and nothing is left of any."""
    check_memory(cluster.memory)
    outcomes = cluster.outcomes()
    assert np.isfinite(outcomes.arrival_s).all(), "every request arrived"
    assert not np.any(outcomes.status == STATUSES.index(Status.UNFINISHED))
    assert cluster.memory.free_slots == len(cluster.memory.sequences)
    ok = outcomes.ok
    assert np.array_equal(outcomes.output_tokens[ok], cluster.trace.output_tokens[ok])
    assert np.isfinite(cluster.cost_accrued)


@RUNS
@given(SEEDS)
def test_random_routing_never_loses_a_request(seed: int) -> None:
    env = RoutingEnv(sampler=AnyWorld(), render_mode="rgb_array")
    rng = np.random.default_rng(seed)
    observation, _ = env.reset(seed=seed)
    total, ended, steps = 0.0, False, 0
    while not ended:
        assert env.observation_space.contains(observation)
        if steps % 8 == 0:  # a drawing takes longer than anything else here
            assert env.render().shape == (480, 800, 3)
        observation, reward, ended, _, info = env.step(np.int64(rng.integers(0, MOST_REPLICAS)))
        assert info["elapsed_s"] >= 0.0
        total += reward
        steps += 1
    assert steps == len(env.cluster.trace)
    assert env.observation_space.contains(observation)
    nothing_is_lost(env.cluster)
    assert np.isclose(total, -env.cluster.cost_accrued)


@RUNS
@given(SEEDS)
def test_random_scaling_never_loses_a_request(seed: int) -> None:
    rng = np.random.default_rng(seed)
    some = rules(rng)
    env = ScalingEnv(sampler=AnyWorld(), rules=some, render_mode="ansi")
    observation, _ = env.reset(seed=seed)
    total, ended, billed = 0.0, False, np.zeros(1)
    while not ended:
        assert env.observation_space.contains(observation)
        assert env.render().count("\n") == len(env.cluster.replicas)
        before = env.scaling.desired
        action = int(rng.integers(0, len(some.changes)))
        observation, reward, ended, _, info = env.step(np.int64(action))
        if before < some.minimum:  # some went on their own
            assert 0 <= info["change"] <= max(some.changes[action], some.minimum - before)
        else:
            assert abs(info["change"]) <= abs(some.changes[action])
            assert some.changes[action] < 0 or info["change"] >= 0
        assert info["change"] >= 0 or before + info["change"] >= some.minimum
        assert np.all(env.cluster.billed_s >= billed)
        billed = env.cluster.billed_s
        total += reward
    nothing_is_lost(env.cluster)
    price = some.price_per_usd * env.cluster.cost_usd
    assert np.isclose(total, -env.cluster.cost_accrued - price)
    assert all(phase in Phase for phase in env.cluster.phases)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(1, 3))
def test_a_vector_of_routing_is_its_environments(seed: int, size: int) -> None:
    vector = VectorRoutingEnv(size, sampler=AnyWorld())
    singles = [RoutingEnv(sampler=AnyWorld()) for _ in range(size)]
    in_step(vector, singles, MOST_REPLICAS, seed)


@settings(max_examples=15, deadline=None)
@given(SEEDS, st.integers(1, 3))
def test_a_vector_of_scaling_is_its_environments(seed: int, size: int) -> None:
    some = rules(np.random.default_rng(seed))
    vector = VectorScalingEnv(size, sampler=AnyWorld(), rules=some)
    singles = [ScalingEnv(sampler=AnyWorld(), rules=some) for _ in range(size)]
    in_step(vector, singles, len(some.changes), seed)


def in_step(vector: Any, singles: list[Any], actions: int, seed: int) -> None:
    """Random actions lead both through the same episodes, one after the other."""
    batched, _ = vector.reset(seed=seed)
    looks = []
    for index, single in enumerate(singles):
        single.np_random = np.random.default_rng([seed, index])
        looks.append(single.reset()[0])
    rng = np.random.default_rng(seed)
    for _ in range(60):
        for index, look in enumerate(looks):
            same(look, one_of(batched, index))
        chosen = rng.integers(0, actions, len(singles))
        batched, rewards, ended, _, info = vector.step(chosen)
        assert vector.observation_space.contains(batched)
        for index, single in enumerate(singles):
            looks[index], reward, done, _, _ = single.step(chosen[index])
            assert done == ended[index]
            assert np.isclose(reward, rewards[index], rtol=1e-12, atol=1e-9)
            if done:
                same(looks[index], info["final_obs"][index])
                looks[index] = single.reset()[0]


def one_of(batched: Any, index: int) -> Any:
    if isinstance(batched, dict):
        return {name: values[index] for name, values in batched.items()}
    return batched[index]


def same(look: Any, other: Any) -> None:
    if isinstance(look, dict):
        assert set(look) == set(other)
        for name, values in look.items():
            assert np.array_equal(values, other[name]), name
    else:
        assert np.array_equal(look, other)
