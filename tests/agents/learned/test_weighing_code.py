from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.learned.weighing import SHAPE, weighed_cost
from steersman.agents.learned.weighing_code import weighed_costs
from tests.agents.learned.conftest import random_batch


@settings(max_examples=30, deadline=None)
@given(
    seed=st.integers(0, 2**16),
    size=st.integers(1, 5),
    replicas=st.integers(1, 16),
    spread=st.sampled_from([0.0, 0.1, 3.0]),
)
def test_machine_code_and_torch_weigh_alike(seed: int, size: int, replicas: int, spread: float) -> None:
    batch = random_batch(seed, size, replicas)
    coefficients = np.random.default_rng(seed).normal(0.0, spread, (size, *SHAPE))
    context = torch.from_numpy(np.concatenate([batch.request, batch.pool], axis=-1))
    expected = weighed_cost(
        torch.from_numpy(batch.replicas), context, torch.from_numpy(coefficients).float()
    )
    found = weighed_costs(batch, coefficients)
    assert np.isinf(found[~batch.mask]).all()
    np.testing.assert_allclose(found[batch.mask], expected.numpy()[batch.mask], rtol=1e-3, atol=1e-4)
