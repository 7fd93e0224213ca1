from __future__ import annotations

import warnings
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.episodes import Randomise, ScenarioSampler
from steersman.env.gym import ROUTING_ID, RoutingEnv, VectorRoutingEnv
from steersman.env.scenario import load_scenario
from steersman.predictors.features import REPLICA_INDEX
from tests.env.worlds import request, small_profile, specs, trace_of

PROFILE = small_profile(kv_capacity_tokens=3200, max_num_seqs=8, max_batched_tokens=512)
COST = REPLICA_INDEX["marginal_cost"]


class Sampler:
    """Short episodes whose length is drawn."""

    most_replicas = 3

    def draw(self, rng: np.random.Generator) -> Cluster:
        count = int(rng.integers(5, 15))
        prompts = rng.integers(10, 400, count)
        trace = trace_of(*(request(i, 0.02 * i, int(p), 10) for i, p in enumerate(prompts)))
        return Cluster(specs(*[PROFILE] * int(rng.integers(1, 4))), trace, seed=int(rng.integers(99)))


def best(observation: dict[str, NDArray[np.float32]]) -> Any:
    """Marginal cost's choice, for one environment or for each of many."""
    cost = np.where(observation["mask"] > 0, observation["replicas"][..., COST], np.inf)
    return np.argmin(cost, axis=-1)


@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
def test_gymnasiums_checker_has_nothing_to_say(render_mode: str) -> None:
    env = gymnasium.make(ROUTING_ID, scenario="tiny", requests=30, render_mode=render_mode)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)


def test_rewards_sum_to_minus_the_final_cost() -> None:
    env = RoutingEnv(sampler=Sampler())
    observation, info = env.reset(seed=4)
    total = 0.0
    ended = False
    elapsed = 0.0
    while not ended:
        assert env.observation_space.contains(observation)
        assert env.action_masks().tolist() == (observation["mask"] > 0).tolist()
        observation, reward, ended, truncated, info = env.step(best(observation))
        assert reward <= 0
        assert not truncated
        total += reward
        elapsed += info["elapsed_s"]
    assert total == pytest.approx(-env.cluster.cost_accrued)
    assert elapsed == pytest.approx(env.cluster.now_s)
    assert env.cluster.outcomes().ok.all()
    assert not observation["mask"].any()
    assert not env.action_masks().any()
    with pytest.raises(RuntimeError, match="reset"):
        env.step(np.int64(0))


def test_a_masked_action_refuses_at_full_cost() -> None:
    env = RoutingEnv(sampler=Sampler())
    for seed in range(20):
        observation, _ = env.reset(seed=seed)
        if not observation["mask"].all():
            break
    _, reward, _, _, info = env.step(np.int64(2))
    assert info["invalid_action"]
    assert reward == pytest.approx(-42.0)


def test_a_seed_repeats_the_episodes() -> None:
    runs = []
    for _ in range(2):
        env = RoutingEnv(sampler=Sampler())
        observation, _ = env.reset(seed=9)
        rewards = []
        for _ in range(40):
            observation, reward, ended, _, _ = env.step(best(observation))
            rewards.append(reward)
            if ended:
                observation, _ = env.reset()
        runs.append(rewards)
    assert runs[0] == runs[1]


def test_rendering_follows_the_load() -> None:
    env = RoutingEnv(sampler=Sampler(), render_mode="ansi")
    env.reset(seed=1)
    text = env.render()
    assert text.count("a100-llama-3.1-8b") == len(env.cluster.replicas)
    assert "chosen   0/0" in text
    env.step(np.int64(0))
    assert "chosen   1/1" in env.render()
    assert RoutingEnv(sampler=Sampler()).render() is None
    image = RoutingEnv(sampler=Sampler(), render_mode="rgb_array")
    image.reset(seed=1)
    before = image.render()
    assert before.shape == (480, 800, 3)
    assert before.dtype == np.uint8
    image.step(np.int64(0))
    assert not np.array_equal(before, image.render())
    with pytest.raises(ValueError, match="render_mode"):
        RoutingEnv(sampler=Sampler(), render_mode="human")


def test_the_vector_is_its_environments_one_by_one() -> None:
    vector = VectorRoutingEnv(3, sampler=Sampler())
    assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    observation, _ = vector.reset(seed=5)
    assert vector.observation_space.contains(observation)
    singles = [RoutingEnv(sampler=Sampler()) for _ in range(3)]
    looks = []
    for index, env in enumerate(singles):
        env.np_random = np.random.default_rng([5, index])
        looks.append(env.reset()[0])
    finals = 0
    for _ in range(40):
        for index, look in enumerate(looks):
            for name, values in look.items():
                assert np.array_equal(values, observation[name][index]), name
        actions = best(observation)
        observation, rewards, ended, truncated, info = vector.step(actions)
        assert vector.observation_space.contains(observation)
        assert not truncated.any()
        for index, env in enumerate(singles):
            looks[index], reward, done, _, single = env.step(actions[index])
            assert reward == pytest.approx(rewards[index], abs=1e-12)
            assert single["elapsed_s"] == info["elapsed_s"][index]
            assert done == ended[index]
            if done:
                finals += 1
                for name, values in looks[index].items():
                    assert np.array_equal(values, info["final_obs"][index][name])
                looks[index] = env.reset()[0]
    assert finals > 3


def test_randomised_episodes_vary_in_everything() -> None:
    scenario = load_scenario("tiny")
    sampler = ScenarioSampler(scenario, requests=20, randomise=Randomise(replicas=(2, 6)))
    rng = np.random.default_rng(0)
    clusters = [sampler.draw(rng) for _ in range(20)]
    sizes = {len(cluster.replicas) for cluster in clusters}
    assert min(sizes) >= 2
    assert max(sizes) <= sampler.most_replicas == 6
    assert len(sizes) > 2
    kinds = {spec.profile.gpu for cluster in clusters for spec in cluster.replicas}
    assert len(kinds) == 4
    assert any(spec.slowdown > 1 for cluster in clusters for spec in cluster.replicas)
    again = ScenarioSampler(scenario, requests=20, randomise=Randomise(replicas=(2, 6)))
    first = again.draw(np.random.default_rng(0))
    assert first.trace.fingerprint() == clusters[0].trace.fingerprint()
    assert first.replicas == clusters[0].replicas
