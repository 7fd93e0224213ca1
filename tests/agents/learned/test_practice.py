from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.learned.config import PracticeSettings
from steersman.agents.learned.ground import grounds_of
from steersman.agents.learned.practice import (
    BUSY,
    FEWEST_SEQS,
    LEAST_MEMORY,
    MOST_WARMUP,
    Practice,
    companions,
)
from steersman.env.profiles import load_profile, profile_names
from steersman.env.scenario import load_scenario
from steersman.predictors.length import FallbackLength
from steersman.traces.errors import ConfigError
from tests.agents.learned.scenes import ground, make_practice, scenario


def test_draws_differ_and_stay_within_the_settings() -> None:
    practice = make_practice(
        PracticeSettings(replicas=(2, 5), episode_requests=30, episode_s=0.0, scenario_share=0.0)
    )
    rng = np.random.default_rng(0)
    clusters = [practice.draw(rng) for _ in range(30)]
    assert {len(cluster.replicas) for cluster in clusters} == {2, 3, 4, 5}
    assert len({cluster.replicas for cluster in clusters}) > 15
    model = scenario().replicas[0].profile.model
    assert all(spec.profile.model == model for cluster in clusters for spec in cluster.replicas)
    assert all(len(cluster.trace) == 30 for cluster in clusters)


@pytest.mark.parametrize("tight_share", [0.0, 1.0])
def test_engines_of_tight_pools_run_few_sequences(tight_share: float) -> None:
    settings = PracticeSettings(replicas=(2, 3), episode_requests=20, episode_s=0.0, scenario_share=0.0)
    practice = make_practice(settings.model_copy(update={"tight_share": tight_share}))
    rng = np.random.default_rng(0)
    pools = [practice.draw(rng).replicas for _ in range(20)]
    usual = {spec.profile.max_num_seqs for spec in scenario().replicas}
    slots = {spec.profile.max_num_seqs for pool in pools for spec in pool}
    assert min(slots) >= min(FEWEST_SEQS, *usual)
    assert (slots <= usual) == (tight_share == 0.0)
    assert all(len({spec.profile.max_num_seqs for spec in pool}) <= len(usual) for pool in pools)


@pytest.mark.parametrize("lean_share", [0.0, 1.0])
def test_engines_of_lean_pools_have_little_memory(lean_share: float) -> None:
    settings = PracticeSettings(
        replicas=(2, 3), episode_requests=20, episode_s=0.0, scenario_share=0.0, lean_share=lean_share
    )
    practice = Practice(grounds_of([load_scenario("prefix")]), FallbackLength(), settings)
    rng = np.random.default_rng(0)
    specs = [spec for _ in range(20) for spec in practice.draw(rng).replicas]
    shares = np.array(
        [
            spec.profile.kv_capacity_tokens / load_profile(spec.profile.name).kv_capacity_tokens
            for spec in specs
        ]
    )
    assert shares.max() <= 1.0
    assert shares.min() >= LEAST_MEMORY - 0.01
    assert (shares.min() < 0.5) == (lean_share == 1.0)
    longest = practice._fields[0]._least_kv_tokens
    assert min(spec.profile.kv_capacity_tokens for spec in specs) >= longest


def test_memory_matters_only_where_prompts_share_prefixes() -> None:
    settings = PracticeSettings(
        replicas=(2, 3), episode_requests=20, episode_s=0.0, scenario_share=0.0, lean_share=1.0
    )
    practice = make_practice(settings)
    rng = np.random.default_rng(0)
    profiles = [spec.profile for _ in range(10) for spec in practice.draw(rng).replicas]
    assert {p.kv_capacity_tokens for p in profiles} <= {
        load_profile(name).kv_capacity_tokens for name in profile_names()
    }


def test_a_share_of_the_draws_is_the_scenario_itself() -> None:
    practice = make_practice(
        PracticeSettings(replicas=(3, 4), episode_requests=20, episode_s=0.0, scenario_share=0.5)
    )
    rng = np.random.default_rng(1)
    own = [practice.draw(rng).replicas == scenario().replicas for _ in range(40)]
    assert 8 <= sum(own) <= 32


def test_the_same_seed_draws_the_same_cluster() -> None:
    practice = make_practice()
    one, other = (practice.draw(np.random.default_rng(7)) for _ in range(2))
    assert one.replicas == other.replicas
    np.testing.assert_array_equal(one.trace.arrival_s, other.trace.arrival_s)


def test_a_profile_of_another_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"practice\.profiles: 'a100-qwen2\.5-7b' serves qwen2\.5-7b"):
        make_practice(PracticeSettings(profiles=("a100-qwen2.5-7b",)))


def test_grounds_are_drawn_evenly_until_one_is_emphasised() -> None:
    settings = PracticeSettings(replicas=(2, 2), episode_requests=20, episode_s=0.0, scenario_share=1.0)
    other = replace(ground(), scenario=replace(scenario(), replicas=scenario().replicas[:1]))
    practice = Practice([ground(), other], FallbackLength(), settings)
    rng = np.random.default_rng(3)

    def share_of_other() -> float:
        return float(np.mean([len(practice.draw(rng).replicas) == 1 for _ in range(120)]))

    assert 0.35 < share_of_other() < 0.65
    practice.emphasise([0.9, 1.0])
    assert share_of_other() > 0.6


def test_an_episode_is_long_enough_for_a_pool_to_fill() -> None:
    settings = PracticeSettings(
        replicas=(2, 2), episode_requests=20, episode_s=30.0, load=(0.5, 0.5), most_requests=400
    )
    cluster = make_practice(settings).draw(np.random.default_rng(0))
    assert cluster.trace.arrival_s[-1] > 25.0
    short = make_practice(settings.model_copy(update={"most_requests": 50}))
    assert len(short.draw(np.random.default_rng(0)).trace) == 50


def test_a_warmup_comes_before_the_episode() -> None:
    settings = PracticeSettings(
        replicas=(2, 3), load=(1.0, 1.0), episode_requests=30, episode_s=0.0, scenario_share=1.0
    )
    practice = make_practice(settings)
    for seed in range(5):
        plan = practice.plan(np.random.default_rng(seed), warmup_s=(4.0, 6.0))
        assert 4.0 <= plan.begin_s <= 6.0
        cluster = practice.make(plan)
        after = np.count_nonzero(cluster.trace.arrival_s >= plan.begin_s)
        assert 10 <= after <= 90
        assert len(cluster.trace) > after


def test_a_warmup_of_a_busy_pool_is_short() -> None:
    settings = PracticeSettings(
        replicas=(2, 3), load=(1.0, 1.0), episode_requests=20, most_requests=20, scenario_share=1.0
    )
    plan = make_practice(settings).plan(np.random.default_rng(0), warmup_s=(1e4, 1e4))
    assert plan.begin_s < 1e4
    assert plan.requests == pytest.approx((MOST_WARMUP + 1) * 20)


def test_episodes_of_busy_clusters_are_stretched() -> None:
    settings = PracticeSettings(
        replicas=(2, 3), episode_requests=20, episode_s=10.0, reuse_episode_s=10.0, busy_stretch=3.0
    )
    for load, length_s in ((0.5, 10.0), (BUSY, 30.0), (1.2, 30.0)):
        practice = make_practice(settings.model_copy(update={"load": (load, load)}))
        plan = practice.plan(np.random.default_rng(0))
        assert plan.end_s - plan.begin_s == pytest.approx(length_s, rel=0.1)


def test_everybody_has_company_of_a_like_and_the_longest_come_first() -> None:
    practice = make_practice(PracticeSettings(replicas=(2, 9), episode_requests=30, episode_s=20.0))
    rng = np.random.default_rng(0)
    plans = [practice.plan(rng) for _ in range(11)]
    groups = companions(plans, 4)
    assert [len(group) for group in groups] == [4, 4, 3]
    in_turn = [plans[i].requests for group in groups for i in group]
    assert in_turn == sorted((plan.requests for plan in plans), reverse=True)
    assert sorted(i for group in groups for i in group) == list(range(11))
