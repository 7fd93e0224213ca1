"""The rule, its memory, and affinity as a policy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.affinity import (
    AFFINITY,
    AffinitySettings,
    GroupKey,
    Homes,
    Stickiness,
    Sticky,
)
from steersman.agents.evaluate.run import Protocol, evaluate, policy_factory
from steersman.agents.policies import make_policy
from steersman.agents.policy import NO_CANDIDATE
from steersman.agents.samples import sample_observation
from steersman.env.scenario import load_scenario
from steersman.predictors.features import REPLICA_INDEX
from steersman.predictors.identity import identity
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Observation

TTFT, KV = REPLICA_INDEX["ttft_s"], REPLICA_INDEX["kv_usage"]


def settings(**more: Any) -> AffinitySettings:
    return AffinitySettings(**{"keys": ("session", "tenant")} | more)


def seen(
    session: str | None = None, *, tenant: str = "", at_s: float = 0.0, replicas: int = 4
) -> Observation:
    """Candidates that are all alike."""
    drawn = sample_observation(np.random.default_rng(0), replicas)
    same = np.repeat(drawn.replicas[:1], replicas, axis=0)
    same[:, TTFT], same[:, KV] = 0.1, 0.5
    return Observation(
        same,
        drawn.request,
        drawn.pool,
        np.ones(replicas, dtype=np.bool_),
        identity(tenant, session),
        np.array(at_s),
    )


def test_homes_are_forgotten_in_time() -> None:
    homes: Homes[int] = Homes(10.0, 100)
    homes.bind("a", 3, 0.0)
    assert homes.find("a", 10.0) == 3
    assert homes.find("a", 10.1) is None
    assert len(homes) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 3))), st.integers(1, 5))
def test_homes_are_the_last_ones_of_the_groups_heard_last(
    bound: list[tuple[int, int]], most: int
) -> None:
    homes: Homes[int] = Homes(1e9, most)
    expected: dict[int, int] = {}
    for i, (group, home) in enumerate(bound):
        homes.bind(group, home, float(i))
        expected.pop(group, None)
        expected[group] = home
    kept = dict(list(expected.items())[-most:])
    assert {g: homes.find(g, len(bound)) for g in range(10)} == {g: kept.get(g) for g in range(10)}


def test_a_session_stays_until_it_has_been_silent_for_too_long() -> None:
    sticky = Sticky(make_policy("round-robin", seed=0), settings(timeout_s=60.0))
    first = sticky.decide(seen("s"))
    again = [sticky.decide(seen("s", at_s=50.0 * i)) for i in range(1, 4)]
    assert first.policy == "round-robin"
    assert {(d.choice, d.policy) for d in again} == {(first.choice, AFFINITY)}
    late = sticky.decide(seen("s", at_s=300.0))
    assert (late.policy, late.choice) == ("round-robin", (first.choice + 1) % 4)


def test_the_first_key_a_request_has_makes_its_group() -> None:
    sticky = Sticky(make_policy("round-robin", seed=0), settings(most_share=99.0))
    by_tenant = sticky.decide(seen(tenant="t")).choice
    assert sticky.decide(seen("s", tenant="t")).choice != by_tenant
    assert sticky.decide(seen(tenant="t")).choice == by_tenant
    assert [sticky.decide(seen()).policy for _ in range(3)] == ["round-robin"] * 3


@pytest.mark.parametrize("what", ["slow", "full", "out", "not a number"])
def test_a_home_that_is_overloaded_or_out_loses_the_group(what: str) -> None:
    sticky = Sticky(make_policy("round-robin", seed=0), settings(slower_s=0.5))
    home = sticky.decide(seen("s")).choice
    trouble = seen("s")
    if what == "slow":
        trouble.replicas[home, TTFT] = 0.61
    elif what == "full":
        trouble.replicas[home, KV] = 0.96
    elif what == "not a number":
        trouble.replicas[home, KV] = np.nan
    else:
        trouble.mask[home] = False
    moved = sticky.decide(trouble)
    assert moved.policy == "round-robin"
    assert moved.choice != home
    assert sticky.decide(seen("s")).choice == moved.choice, "that is its home now"


def test_one_hot_replica_loses_its_own_groups_and_no_others() -> None:
    sticky = Sticky(make_policy("round-robin", seed=0), settings())
    homes = {name: sticky.decide(seen(name)).choice for name in "abcd"}
    for name, home in homes.items():
        hot = seen(name)
        hot.replicas[homes["a"], TTFT] = 9.0
        decision = sticky.decide(hot)
        assert (decision.policy == AFFINITY) is (name != "a")
        assert name == "a" or decision.choice == home


def test_a_group_larger_than_a_replica_s_part_spreads_and_small_ones_stay() -> None:
    sticky = Sticky(make_policy("round-robin", seed=0), settings(most_share=0.5))
    policies: dict[str, list[str]] = {"large": [], "small": []}
    for i in range(1600):
        name = "large" if i % 4 else f"small-{i % 64}"
        made = sticky.decide(seen(name, at_s=i / 40.0))
        policies[name.partition("-")[0]].append(made.policy)
    assert set(policies["large"][400:]) == {"round-robin"}
    assert policies["small"][-100:].count(AFFINITY) == 100


def test_where_nobody_may_be_chosen_nobody_is() -> None:
    sticky = Sticky(make_policy("p2c", seed=0), settings())
    nobody = seen("s")
    nobody.mask[:] = False
    assert sticky.decide(nobody).choice == NO_CANDIDATE
    assert sticky.decide(seen("s")).policy == "p2c"


@given(st.integers(1, 6), st.integers(0, 2**32 - 1))
def test_who_stays_may_be_chosen(home: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    drawn = sample_observation(rng, 6)
    rule = Stickiness(settings(slower_s=float(rng.uniform(0, 2))))
    decision = rule.decide(home - 1, drawn, make_policy("p2c", seed=0))
    assert decision.choice == NO_CANDIDATE or drawn.mask[decision.choice]


def test_what_only_the_router_knows_is_refused_in_the_simulator() -> None:
    with pytest.raises(ConfigError, match="affinity by 'user'"):
        Sticky(make_policy("p2c", seed=0), AffinitySettings(keys=(GroupKey.USER,)))
    with pytest.raises(ValueError, match="twice"):
        settings(keys=("user", "user"))


def test_sessions_find_their_prefix_again_in_the_cluster_model() -> None:
    """p2c does not look at caches: behind affinity it hits far more of them."""
    protocol = Protocol(loads=(0.5,), seeds=(0,), requests=150, window_s=0.0, warmup_s=20.0)
    contestants = {
        "p2c": policy_factory("p2c"),
        "sticky": lambda seed, clock: Sticky(policy_factory("p2c")(seed, clock), settings()),
    }
    table = evaluate(contestants, [load_scenario("prefix")], protocol)
    (cell,) = table.cells
    plain, sticky = (table.mean(name, cell, "prefix_hit_rate") for name in contestants)
    assert sticky > plain + 0.1
