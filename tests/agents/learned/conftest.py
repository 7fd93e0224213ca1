"""Networks and observations that the tests of the learned policy share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch

from steersman.agents.learned.config import NetworkSettings
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.samples import sample_observation
from steersman.traces.schema import Observation


def batch_of(observations: Sequence[Observation]) -> Observation:
    """Stack observations of the same number of replicas."""
    return Observation(
        np.stack([o.replicas for o in observations]),
        np.stack([o.request for o in observations]),
        np.stack([o.pool for o in observations]),
        np.stack([o.mask for o in observations]),
    )


def random_batch(seed: int, size: int, replicas: int) -> Observation:
    """A batch of random observations, some replicas masked."""
    rng = np.random.default_rng(seed)
    return batch_of([sample_observation(rng, replicas) for _ in range(size)])


def make_network(seed: int = 0, *, is_plain: bool = False, **settings: float) -> RoutingNetwork:
    """A network whose residual is far from zero, its compression fitted to random observations.

    Args:
        is_plain: leave the weights of the marginal cost as they are.
    """
    torch.manual_seed(seed)
    network = RoutingNetwork(NetworkSettings.model_validate({"initial_residual": 0.5, **settings}))
    seen = random_batch(seed, 64, 8)
    network.compress_replicas.fit(torch.from_numpy(seen.replicas[seen.mask]))
    context = np.concatenate([seen.request, seen.pool], axis=-1)
    network.compress_context.fit(torch.from_numpy(context))
    if not is_plain:
        network.coefficients.normal_(0.0, 0.4)
    return network.eval()


@pytest.fixture(scope="session")
def network() -> RoutingNetwork:
    return make_network()
