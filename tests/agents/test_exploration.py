"""The logged propensity is the share of such choices, whoever made them and on whatever way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.affinity import AffinitySettings, GroupKey, Sticky
from steersman.agents.exploration import Explorer
from steersman.agents.guard import Guard, GuardSettings
from steersman.agents.learned.served import LearnedPolicy
from steersman.agents.policies import POLICY_NAMES, is_equivariant, make_policy
from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.agents.policy_checker import check_policy
from steersman.agents.samples import sample_observation
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from tests.agents.observations import observation
from tests.parity.test_policy import MODEL

SHARE = 0.2
DRAWS = 4000
TTFT = REPLICA_INDEX["ttft_s"]
AGE = REPLICA_INDEX["age_s"]
QUEUE = REPLICA_INDEX["queue"]
OUTSIDE = GuardSettings(max_outside_share=1.0, max_disagreement=1.0, deadline_ms=1e6, cost_slack=1e9)
"""Observations drawn at random lie outside of what the small test policy was trained on."""
STALE = {"max_age_s": 0.05, "fallbacks": ("p2c",)}
"""All metrics are too old, and the one to fall back on draws."""


def explorer(policy: Policy, seed: int = 0, share: float = SHARE) -> Explorer:
    guard = GuardSettings()
    rng = np.random.default_rng(seed)
    return Explorer(policy, rng, share, slow_factor=guard.slow_factor, slow_slack_s=guard.slow_slack_s)


def learned(seed: int, guard: GuardSettings = OUTSIDE) -> Policy:
    rng = np.random.default_rng(seed)
    return Guard.make(LearnedPolicy(MODEL, rng), guard, seed=rng, clock=lambda: 0.0)


def latched_on_p2c(seed: int) -> Policy:
    return Guard.make(None, GuardSettings(fallbacks=("p2c",)), seed=seed, clock=lambda: 0.0)


def at_home(seed: int) -> Policy:
    affinity = AffinitySettings(keys=(GroupKey.SESSION,), most_share=1e9, slower_s=60.0)
    return Sticky(explorer(make_policy("marginal-cost", seed=seed), seed), affinity)


def even(n: int = 5, allowed: int = 4) -> Observation:
    """Replicas that differ, none of them far slower or busier than another, with fresh metrics."""
    seen = sample_observation(np.random.default_rng(7), n, allowed=allowed)
    seen.replicas[:, AGE] = 0.1
    seen.replicas[:, QUEUE] = 2.0
    seen.replicas[:, TTFT] = np.linspace(0.1, 0.3, n)
    return seen


def true_to_its_frequencies(policy: Policy, seen: Observation) -> dict[int, float]:
    """What each choice has for a propensity, checked against how often it comes."""
    counts: Counter[int] = Counter()
    stated: dict[int, float] = {}
    for _ in range(DRAWS):
        decision = policy.decide(seen)
        counts[decision.choice] += 1
        assert stated.setdefault(decision.choice, decision.propensity) == decision.propensity
    for choice, propensity in stated.items():
        error = np.sqrt(propensity * (1.0 - propensity) / DRAWS)
        assert counts[choice] / DRAWS == pytest.approx(propensity, abs=5.0 * error + 1e-9)
    return stated


@pytest.mark.parametrize(
    "make",
    [learned, latched_on_p2c, lambda seed: make_policy("marginal-cost", seed=seed)],
    ids=["learned", "p2c fallback", "marginal-cost"],
)
@pytest.mark.parametrize("allowed", [1, 2, 5])
def test_propensities_are_true(make: Callable[[int], Policy], allowed: int) -> None:
    stated = true_to_its_frequencies(explorer(make(1)), even(5, allowed))
    assert sum(stated.values()) == pytest.approx(1.0)


def test_every_sound_candidate_is_reached() -> None:
    seen = even(6, 5)
    assert set(true_to_its_frequencies(explorer(learned(2)), seen)) == set(np.flatnonzero(seen.mask))


def test_chance_sends_nobody_to_who_is_far_slower() -> None:
    seen = even(5, 5)
    seen.replicas[2, TTFT] = 60.0
    seen.replicas[4, TTFT] = np.nan
    stated = true_to_its_frequencies(explorer(make_policy("marginal-cost", seed=0)), seen)
    assert set(stated) <= {0, 1, 3}
    assert min(stated.values()) == pytest.approx(SHARE / 3)


def test_a_fallback_after_a_veto_keeps_its_true_propensity() -> None:
    """Under the guard, chance would have been overruled here, and the log would have said 1."""
    seen = even(4, 4)
    seen.replicas[:3, TTFT] = (0.1, 0.1, 60.0)
    policy = explorer(learned(3, OUTSIDE.model_copy(update=STALE)))
    stated = true_to_its_frequencies(policy, seen)
    assert policy.decide(seen).policy == "p2c"
    assert sum(stated.values()) == pytest.approx(1.0)


def test_a_group_at_home_stays_there_with_certainty() -> None:
    seen = even(4, 4)
    seen.identity[:] = (1, 2)
    decision = at_home(4).decide(seen)
    stays = true_to_its_frequencies(_after(decision, seen), seen)
    assert list(stays.items()) == [(decision.choice, 1.0)]


def _after(first: Decision, seen: Observation) -> Policy:
    """A policy that has already bound the group, to the home `first` chose."""
    policy = at_home(4)
    assert policy.decide(seen).choice == first.choice
    return policy


def test_who_was_explored_is_told() -> None:
    policy = explorer(make_policy("marginal-cost", seed=0))
    seen = even()
    decisions = [policy.decide(seen) for _ in range(DRAWS)]
    share = np.mean([decision.explored for decision in decisions])
    assert share == pytest.approx(SHARE, abs=0.04)
    unlikely = [decision for decision in decisions if decision.propensity < 0.5]
    assert unlikely
    assert all(decision.explored for decision in unlikely)
    assert {decision.policy for decision in decisions} == {"marginal-cost"}


def test_nobody_to_choose() -> None:
    assert explorer(make_policy("p2c", seed=0)).decide(even(3, 0)).choice == NO_CANDIDATE


def test_a_decision_by_chance_is_left_alone() -> None:
    seen = observation(3, ttft_s=[0.1, 0.1, 0.2], e2e_s=[1.0, 1.0, 1.0])
    stated = true_to_its_frequencies(explorer(make_policy("random", seed=0)), seen)
    assert stated == dict.fromkeys(range(3), 1.0 / 3.0)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31), st.integers(2, 12), st.sampled_from(POLICY_NAMES))
def test_any_policy_keeps_its_propensities_between_0_and_1(seed: int, n: int, name: str) -> None:
    seen = sample_observation(np.random.default_rng(seed), n)
    policy = explorer(make_policy(name, seed=seed), seed)
    for _ in range(20):
        decision = policy.decide(seen)
        assert seen.mask[decision.choice]
        assert 0.0 < decision.propensity <= 1.0


@pytest.mark.parametrize("name", ["p2c", "marginal-cost", "llm-d-default", "predicted-latency"])
def test_it_keeps_the_policy_contract(name: str) -> None:
    assert is_equivariant(name)
    check_policy(lambda seed: explorer(make_policy(name, seed=seed), seed))
