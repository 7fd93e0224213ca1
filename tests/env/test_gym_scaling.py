from __future__ import annotations

import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

from steersman.env.cluster import Cluster
from steersman.env.gym import SCALING_ID, ScalingEnv, VectorScalingEnv
from steersman.env.scaling import SCALING_FEATURES, ScalingRules
from steersman.predictors.features import POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES
from tests.env.worlds import request, small_profile, specs, trace_of

PROFILE = small_profile(kv_capacity_tokens=3200, max_num_seqs=8, max_batched_tokens=512)
RULES = ScalingRules(interval_s=1.0, changes=(-1, 0, 1), cooldown_s=2.0)


class Sampler:
    """Short episodes whose length is drawn."""

    most_replicas = 3

    def draw(self, rng: np.random.Generator) -> Cluster:
        count = int(rng.integers(20, 80))
        prompts = rng.integers(10, 400, count)
        trace = trace_of(*(request(i, 0.05 * i, int(p), 10) for i, p in enumerate(prompts)))
        replicas = tuple(
            replace(spec, standby=i > 0, cold_start_s=0.5)
            for i, spec in enumerate(specs(*[PROFILE] * 3))
        )
        return Cluster(replicas, trace, seed=int(rng.integers(99)))


def env(**more: Any) -> ScalingEnv:
    return ScalingEnv(sampler=Sampler(), rules=RULES, **more)


@pytest.mark.parametrize("render_mode", ["ansi", "rgb_array"])
def test_gymnasiums_checker_has_nothing_to_say(render_mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made = gymnasium.make(SCALING_ID, sampler=Sampler(), rules=RULES, render_mode=render_mode)
        check_env(made.unwrapped)


def test_an_episode_of_a_scenario() -> None:
    made = ScalingEnv("tensor-parallel", duration_s=60.0)
    observation, _ = made.reset(seed=1)
    ended = False
    total = elapsed = 0.0
    while not ended:
        assert made.observation_space.contains(observation)
        action = np.flatnonzero(made.action_masks())[-1]
        observation, reward, ended, truncated, info = made.step(action)
        assert not truncated
        total += reward
        elapsed += info["elapsed_s"]
    cluster = made.cluster
    assert elapsed == pytest.approx(cluster.now_s)
    assert total == pytest.approx(-cluster.cost_accrued - 2000.0 * cluster.cost_usd)
    with pytest.raises(RuntimeError, match="reset"):
        made.step(np.int64(0))


def test_a_seed_repeats_the_episodes() -> None:
    runs = []
    for _ in range(2):
        made = env()
        made.action_space.seed(1)
        made.reset(seed=9)
        rewards = []
        for _ in range(20):
            _, reward, ended, _, _ = made.step(made.action_space.sample())
            rewards.append(reward)
            if ended:
                made.reset()
        runs.append(rewards)
    assert runs[0] == runs[1]


def test_rendering_follows_the_load() -> None:
    made = env(render_mode="rgb_array")
    made.reset(seed=1)
    before = made.render()
    assert before.shape == (480, 800, 3)
    made.step(np.int64(2))
    assert not np.array_equal(made.render(), before)
    text = env(render_mode="ansi")
    text.reset(seed=1)
    text.step(np.int64(2))
    assert text.render().count("\n") == 3
    assert "2 of 3 replicas" in text.render()
    assert env().render() is None
    with pytest.raises(RuntimeError, match="reset"):
        env(render_mode="ansi").render()


def test_the_vector_is_its_environments_one_by_one() -> None:
    vector = VectorScalingEnv(3, sampler=Sampler(), rules=RULES)
    assert vector.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    with pytest.raises(RuntimeError, match="reset"):
        vector.step(np.ones(3, dtype=np.int64))
    observation, _ = vector.reset(seed=5)
    singles = [env() for _ in range(3)]
    looks = []
    for index, single in enumerate(singles):
        single.np_random = np.random.default_rng([5, index])
        looks.append(single.reset()[0])
    rng = np.random.default_rng(0)
    finals = 0
    for _ in range(15):
        assert vector.observation_space.contains(observation)
        assert np.array_equal(np.stack(looks), observation)
        masks = np.stack([single.action_masks() for single in singles])
        assert np.array_equal(masks, vector.action_masks())
        actions = rng.integers(0, 3, 3)
        observation, rewards, ended, truncated, info = vector.step(actions)
        assert not truncated.any()
        for index, single in enumerate(singles):
            looks[index], reward, done, _, one = single.step(actions[index])
            assert reward == rewards[index]
            assert one["change"] == info["change"][index]
            assert one["elapsed_s"] == info["elapsed_s"][index]
            assert done == ended[index]
            if done:
                finals += 1
                assert np.array_equal(looks[index], info["final_obs"][index])
                looks[index] = single.reset()[0]
    assert finals > 3
    vector.reset(seed=[7, None, 8])


def test_every_feature_and_default_is_documented() -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text(encoding="utf-8")
    documented = set(re.findall(r"`([a-z0-9_]+)`", page))
    assert set(SCALING_FEATURES) | set(REPLICA_FEATURES) <= documented
    assert f"({len(REQUEST_FEATURES)},)" in page
    assert f"({len(POOL_FEATURES)},)" in page
    assert f"(n, {len(REPLICA_FEATURES)})" in page
    rules = ScalingRules()
    cells = " | ".join(f"{change:+d}" if change else "0" for change in rules.changes)
    assert f"| change | {cells} |" in page
    for name in ("interval_s", "cooldown_s", "price_per_usd"):
        assert f"| `{name}` | {getattr(rules, name):g} |" in page
