"""The equivariant network as a stable-baselines3 policy, with its own masked distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from steersman.agents.learned.config import NetworkSettings
from steersman.agents.learned.network import RoutingNetwork
from steersman.predictors.features import POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES

HEAD_SHARE = 0.5
"""Weight of a cluster's own head in the policy that acts there; the others share the rest."""


def observation_space(replicas: int, heads: int) -> spaces.Dict:
    """Observations padded to `replicas` candidates, and the weight of each head for this cluster."""

    def box(*shape: int) -> spaces.Box:
        return spaces.Box(-np.inf, np.inf, shape, np.float32)

    return spaces.Dict(
        {
            "replicas": box(replicas, len(REPLICA_FEATURES)),
            "request": box(len(REQUEST_FEATURES)),
            "pool": box(len(POOL_FEATURES)),
            "mask": spaces.Box(0, 1, (replicas,), np.int8),
            "heads": box(heads),
        }
    )


def head_weights(environments: int, heads: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """(environments, heads): every cluster leans on one head, in turn.

    So each head learns most from its own share of the experience, as in a bootstrap: where they were
    taught little they differ, which is what the guard wants to know.
    """
    weights = np.full((environments, heads), (1.0 - HEAD_SHARE) / heads, dtype=np.float32)
    weights[np.arange(environments), np.arange(environments) % heads] += HEAD_SHARE
    return weights


class _NoFeatures(BaseFeaturesExtractor):
    """stable-baselines3 wants one; the network takes the observation as it is."""

    def __init__(self, space: spaces.Space[Any]) -> None:
        super().__init__(space, features_dim=1)


class RoutingActorCritic(ActorCriticPolicy):
    """Masked categorical policy and value over `RoutingNetwork`."""

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        *,
        network: NetworkSettings,
        use_sde: bool = False,
    ) -> None:
        self._settings = network
        super().__init__(
            observation_space,
            action_space,
            lr_schedule,
            use_sde=use_sde,
            features_extractor_class=_NoFeatures,
        )

    def _build(self, lr_schedule: Schedule) -> None:
        self.network = RoutingNetwork(self._settings)
        self.optimizer = torch.optim.Adam(self.parameters(), lr=lr_schedule(1), eps=1e-5)

    def log_probabilities(self, observation: PyTorchObs) -> tuple[Tensor, Tensor]:
        """Log-probability of every candidate, (b, n), and the value, (b,)."""
        assert isinstance(observation, dict)
        mask = observation["mask"] > 0
        request, pool = observation["request"], observation["pool"]
        embedding = self.network.embed(observation["replicas"], request, pool, mask)
        heads = self.network.head_logits(embedding, mask)
        logits = (heads * observation["heads"].unsqueeze(-1)).sum(dim=1)
        value = self.network.state_value(embedding, torch.cat([request, pool], dim=-1))
        return torch.log_softmax(logits, dim=-1), value

    def forward(self, obs: PyTorchObs, deterministic: bool = False) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, values and log-probabilities, (b,) each."""
        log_p, value = self.log_probabilities(obs)
        # The Gumbel trick: the largest of log p + Gumbel noise is a draw from p.
        noisy = log_p if deterministic else log_p - torch.empty_like(log_p).exponential_().log()
        action = noisy.argmax(dim=-1)
        return action, value, log_p.gather(-1, action.unsqueeze(-1)).squeeze(-1)

    def evaluate_actions(self, obs: PyTorchObs, actions: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values, log-probabilities of `actions` and entropies, (b,) each."""
        log_p, value = self.log_probabilities(obs)
        taken = log_p.gather(-1, actions.long().reshape(-1, 1)).squeeze(-1)
        # Where p is exactly 0 the product is, too: the logits stay finite.
        return value, taken, -(log_p.exp() * log_p).sum(dim=-1)

    def predict_values(self, obs: PyTorchObs) -> Tensor:
        """Values alone, (b,)."""
        return self.log_probabilities(obs)[1]

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        return self.forward(observation, deterministic)[0]
