"""PPO (Schulman et al. 2017) through stable-baselines3, in continuous time.

Decisions do not come at even intervals: a discount per decision would make a cost a second ahead
count less the busier the cluster is. So the discount of a step is exp(-elapsed / discount_time_s).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3 import PPO
from stable_baselines3.common.buffers import DictRolloutBuffer
from stable_baselines3.common.logger import Logger

from steersman.agents.learned.actor_critic import RoutingActorCritic
from steersman.agents.learned.config import NetworkSettings, PPOSettings
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.vec_env import RoutingVecEnv


class ElapsedTimeBuffer(DictRolloutBuffer):
    """Generalised advantages with a discount that depends on the simulated time of each step."""

    def __init__(
        self,
        buffer_size: int,
        observation_space: spaces.Dict,
        action_space: spaces.Space[Any],
        *,
        clock: RoutingVecEnv,
        discount_time_s: float,
        **keywords: Any,
    ) -> None:
        self._clock = clock
        self._discount_time_s = discount_time_s
        super().__init__(buffer_size, observation_space, action_space, **keywords)

    def reset(self) -> None:
        """Empty the buffer."""
        super().reset()
        self.discounts = np.zeros((self.buffer_size, self.n_envs), dtype=np.float32)

    def add(self, *step: Any, **keywords: Any) -> None:
        """Store a step, and the time the environment says it took."""
        self.discounts[self.pos] = np.exp(-self._clock.elapsed_s / self._discount_time_s)
        super().add(*step, **keywords)

    def compute_returns_and_advantage(self, last_values: torch.Tensor, dones: NDArray[Any]) -> None:
        """As in stable-baselines3, with `discounts` for gamma."""
        next_values = last_values.clone().cpu().numpy().flatten()
        alive = 1.0 - dones.astype(np.float32)
        advantage = np.zeros(self.n_envs, dtype=np.float32)
        for step in reversed(range(self.buffer_size)):
            discount = self.discounts[step] * alive
            delta = self.rewards[step] + discount * next_values - self.values[step]
            advantage = delta + discount * self.gae_lambda * advantage
            self.advantages[step] = advantage
            next_values = self.values[step]
            alive = 1.0 - self.episode_starts[step]
        self.returns = self.advantages + self.values


class PPOLearner:
    """Improves a network by PPO, one update at a time.

    Args:
        environment: the clusters to practise on.
        network: where to start from; it is not changed, read `network` for the result.
        left: share of the training that is left, 1 to 0, for the learning rate.
    """

    def __init__(
        self,
        environment: RoutingVecEnv,
        network: RoutingNetwork,
        shape: NetworkSettings,
        settings: PPOSettings,
        *,
        seed: int,
        left: Callable[[], float],
    ) -> None:
        self._settings = settings
        self._batch = settings.steps * environment.num_envs
        self._updates = 0
        self._learner = _make_ppo(environment, shape, settings, seed=seed, left=left)
        self._logger = self._learner.logger
        self.network.load_state_dict(network.state_dict())

    @property
    def network(self) -> RoutingNetwork:
        """The policy as it is now."""
        policy = self._learner.policy
        assert isinstance(policy, RoutingActorCritic)
        return policy.network

    @property
    def decisions(self) -> int:
        """Taken so far."""
        return int(self._learner.num_timesteps)

    def update(self) -> dict[str, float]:
        """Gather one batch of experience and learn from it; returns what the update measured."""
        warming = self._updates < self._settings.critic_warmup
        values = {id(parameter) for parameter in self.network.value_parameters()}
        for parameter in self.network.parameters():
            parameter.requires_grad_(not warming or id(parameter) in values)
        self._learner.learn(self._batch, reset_num_timesteps=self._updates == 0, log_interval=None)  # type: ignore[arg-type]
        self._updates += 1
        for parameter in self.network.parameters():
            parameter.requires_grad_(True)
        names = ("value_loss", "approx_kl", "clip_fraction", "explained_variance", "entropy_loss")
        measured = {
            name: self._logger.name_to_value.get(f"train/{name}", float("nan")) for name in names
        }
        measured["reward"] = float(self._learner.rollout_buffer.rewards.mean())
        return measured


def _make_ppo(
    environment: RoutingVecEnv,
    network: NetworkSettings,
    settings: PPOSettings,
    *,
    seed: int,
    left: Callable[[], float],
) -> PPO:
    learner = PPO(
        RoutingActorCritic,
        environment,
        learning_rate=lambda _: settings.learning_rate * (0.1 + 0.9 * left()),
        n_steps=settings.steps,
        batch_size=min(settings.minibatch, settings.steps * environment.num_envs),
        n_epochs=settings.epochs,
        gae_lambda=settings.gae_lambda,
        clip_range=settings.clip,
        ent_coef=settings.entropy,
        vf_coef=settings.value_weight,
        target_kl=settings.target_kl,
        rollout_buffer_class=ElapsedTimeBuffer,
        rollout_buffer_kwargs={"clock": environment, "discount_time_s": settings.discount_time_s},
        policy_kwargs={"network": network},
        seed=seed,
        device="cpu",
    )
    learner.set_logger(Logger(folder=None, output_formats=[]))
    return learner
