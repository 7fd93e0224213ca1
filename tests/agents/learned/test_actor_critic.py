from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.learned.actor_critic import RoutingActorCritic, head_weights, observation_space
from steersman.agents.learned.config import NetworkSettings
from tests.agents.learned.conftest import make_network, random_batch

WEIGHTS = make_network().state_dict()


def make_policy(replicas: int) -> RoutingActorCritic:
    policy = RoutingActorCritic(
        observation_space(replicas, 3),
        spaces.Discrete(replicas),
        lambda _: 1e-3,
        network=NetworkSettings(),
    )
    policy.network.load_state_dict(WEIGHTS)
    return policy


def as_tensors(seed: int, size: int, replicas: int) -> dict[str, torch.Tensor]:
    batch = random_batch(seed, size, replicas)
    return {
        "replicas": torch.from_numpy(batch.replicas),
        "request": torch.from_numpy(batch.request),
        "pool": torch.from_numpy(batch.pool),
        "mask": torch.from_numpy(batch.mask.astype(np.int8)),
        "heads": torch.from_numpy(head_weights(size, 3)),
    }


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), replicas=st.integers(1, 32))
def test_only_allowed_replicas_are_drawn_with_the_probability_reported(seed: int, replicas: int) -> None:
    policy, seen = make_policy(replicas), as_tensors(seed, 16, replicas)
    torch.manual_seed(seed)
    action, value, log_p = policy(seen)
    assert bool(seen["mask"].gather(1, action.unsqueeze(1)).all())
    again_value, again_log_p, entropy = policy.evaluate_actions(seen, action)
    torch.testing.assert_close(log_p, again_log_p)
    torch.testing.assert_close(value, again_value)
    assert entropy is not None
    assert bool((entropy >= -1e-6).all())
    assert bool((entropy <= seen["mask"].sum(dim=1).log() + 1e-4).all())


def test_draws_follow_the_probabilities() -> None:
    policy, seen = make_policy(4), as_tensors(3, 1, 4)
    many = {key: value.expand(20_000, *value.shape[1:]) for key, value in seen.items()}
    torch.manual_seed(0)
    action, _, _ = policy(many)
    expected = policy.log_probabilities(seen)[0][0].exp()
    shares = torch.bincount(action, minlength=4) / len(action)
    torch.testing.assert_close(shares, expected, atol=0.02, rtol=0.0)


def test_every_head_leads_somewhere() -> None:
    weights = head_weights(7, 3)
    np.testing.assert_allclose(weights.sum(axis=1), 1.0, rtol=1e-6)
    assert set(weights.argmax(axis=1)) == {0, 1, 2}
