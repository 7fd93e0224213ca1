from __future__ import annotations

import numpy as np
import pytest
import torch
from gymnasium import spaces

from steersman.agents.learned.actor_critic import observation_space
from steersman.agents.learned.config import NetworkSettings, PPOSettings
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.ppo import ElapsedTimeBuffer, PPOLearner
from steersman.agents.learned.vec_env import RoutingVecEnv
from steersman.predictors.features import REPLICA_INDEX
from tests.agents.learned.scenes import make_practice

SETTINGS = PPOSettings(environments=4, steps=8, minibatch=16, epochs=1, critic_warmup=1)
SHAPE = NetworkSettings(width=8)


def marginal_cost(seen: dict[str, np.ndarray]) -> np.ndarray:
    cost = seen["replicas"][..., REPLICA_INDEX["marginal_cost"]]
    choices: np.ndarray = np.where(seen["mask"] > 0, cost, np.inf).argmin(axis=-1)
    return choices


def make_environment(environments: int = 4) -> RoutingVecEnv:
    return RoutingVecEnv(make_practice(), environments, heads=3, seed=1)


def test_marginal_cost_earns_nothing_over_its_own_twin() -> None:
    environment = make_environment()
    seen = environment.reset()
    ended = np.zeros(4, dtype=int)
    for _ in range(100):
        seen, reward, done, _ = environment.step(marginal_cost(seen))  # type: ignore[arg-type]
        np.testing.assert_allclose(reward, 0.0, atol=1e-6)
        assert (environment.elapsed_s >= 0.0).all()
        ended += done
    assert (ended >= 1).all(), "episodes end and new ones begin"


def test_a_bad_policy_loses() -> None:
    environment = make_environment(8)
    seen = environment.reset()
    total = 0.0
    for _ in range(150):
        cost = np.where(seen["mask"] > 0, seen["replicas"][..., REPLICA_INDEX["marginal_cost"]], -1)  # type: ignore[call-overload]
        seen, reward, _, _ = environment.step(cost.argmax(axis=-1))
        total += float(reward.sum())
    assert total < -10.0


def test_advantages_are_discounted_by_elapsed_time() -> None:
    environment = make_environment(2)
    buffer = ElapsedTimeBuffer(
        3,
        observation_space(4, 3),
        spaces.Discrete(4),
        clock=environment,
        discount_time_s=2.0,
        device="cpu",
        gae_lambda=0.5,
        n_envs=2,
    )
    seen = {
        key: np.zeros((2, *space.shape))
        for key, space in observation_space(4, 3).spaces.items()
        if space.shape
    }
    rewards = np.array([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
    values = np.array([[0.5, 0.1], [0.2, 0.3], [0.7, 0.4]])
    elapsed = np.array([[1.0, 0.5], [2.0, 0.1], [0.3, 4.0]])
    starts = np.array([[1, 1], [0, 1], [0, 0]])  # the second environment's first step ended an episode
    for reward, value, dt, start in zip(rewards, values, elapsed, starts, strict=True):
        environment.elapsed_s = dt.astype(np.float32)
        action = np.zeros((2, 1))
        buffer.add(seen, action, reward, start, torch.from_numpy(value), torch.zeros(2))
    last = np.array([0.9, 0.8])
    buffer.compute_returns_and_advantage(torch.from_numpy(last), np.array([False, True]))

    discount = np.exp(-elapsed / 2.0)
    alive = np.array([[1, 0], [1, 1], [1, 0]])
    following = np.vstack([values[1:], last])
    expected = np.zeros((3, 2))
    carried = np.zeros(2)
    for t in (2, 1, 0):
        step = discount[t] * alive[t]
        carried = rewards[t] + step * following[t] - values[t] + step * 0.5 * carried
        expected[t] = carried
    np.testing.assert_allclose(buffer.advantages, expected, rtol=1e-5)
    np.testing.assert_allclose(buffer.returns, expected + values, rtol=1e-5)


def test_the_critic_warms_up_alone_then_the_policy_moves() -> None:
    torch.manual_seed(0)
    start = RoutingNetwork(SHAPE)
    learner = PPOLearner(make_environment(), start, SHAPE, SETTINGS, seed=0, left=lambda: 1.0)
    values = {id(parameter) for parameter in learner.network.value_parameters()}

    def moved() -> tuple[bool, bool]:
        """Whether the value, and whether anything else, differs from the start."""
        pairs = list(zip(learner.network.parameters(), start.parameters(), strict=True))
        of_value = any(not torch.equal(a, b) for a, b in pairs if id(a) in values)
        return of_value, any(not torch.equal(a, b) for a, b in pairs if id(a) not in values)

    assert moved() == (False, False)
    learner.update()
    assert moved() == (True, False)
    measured = learner.update()
    assert moved() == (True, True)
    assert learner.decisions == 2 * 4 * 8
    assert np.isfinite(measured["value_loss"])
    assert measured["approx_kl"] == pytest.approx(0.0, abs=0.5)


def test_the_same_seed_learns_the_same() -> None:
    def weights() -> torch.Tensor:
        torch.manual_seed(0)
        start = RoutingNetwork(SHAPE)
        learner = PPOLearner(make_environment(), start, SHAPE, SETTINGS, seed=3, left=lambda: 1.0)
        learner.update()
        learner.update()
        return torch.cat([parameter.detach().flatten() for parameter in learner.network.parameters()])

    torch.testing.assert_close(weights(), weights(), rtol=0.0, atol=0.0)
