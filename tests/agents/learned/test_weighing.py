from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.learned.weighing import (
    CANDIDATE_SIGNALS,
    CONTEXT,
    CONTEXT_SIGNALS,
    FIRST_CANDIDATE,
    FREE,
    FREE_WEIGHTS,
    MOST_CHANGE,
    SHAPE,
    weighed_cost,
)
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation
from tests.agents.learned.conftest import random_batch

COST = REPLICA_INDEX["marginal_cost"]


def weigh(
    batch: Observation, coefficients: torch.Tensor
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    context = torch.from_numpy(np.concatenate([batch.request, batch.pool], axis=-1))
    return weighed_cost(torch.from_numpy(batch.replicas), context, coefficients).numpy()


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), replicas=st.integers(1, 16))
def test_without_coefficients_it_is_the_marginal_cost(seed: int, replicas: int) -> None:
    batch = random_batch(seed, 3, replicas)
    np.testing.assert_array_equal(weigh(batch, torch.zeros(SHAPE)), batch.replicas[..., COST])


def test_a_bias_alone_is_another_weight_of_its_term() -> None:
    batch = random_batch(1, 3, 5)
    for k, term in enumerate(FREE):
        coefficients = torch.zeros(SHAPE)
        coefficients[k, 0] = np.log(3.0)
        added = 2.0 * FREE_WEIGHTS[k] * batch.replicas[..., REPLICA_INDEX[term]]
        np.testing.assert_allclose(
            weigh(batch, coefficients), batch.replicas[..., COST] + added, rtol=1e-4, atol=1e-5
        )


def test_a_slope_follows_its_signal_of_the_context_and_no_other() -> None:
    batch = random_batch(2, 1, 4)
    for s, signal in enumerate(CONTEXT_SIGNALS):
        coefficients = torch.zeros(SHAPE)
        coefficients[1, 1 + s] = 1.0
        context = np.concatenate([batch.request, batch.pool], axis=-1)
        low, high = context.copy(), context.copy()
        low[0, CONTEXT.index(signal.feature)] = signal.centre - signal.floor
        high[0, CONTEXT.index(signal.feature)] = signal.centre * np.exp(signal.width) - signal.floor
        replicas = torch.from_numpy(batch.replicas)
        at_centre = weighed_cost(replicas, torch.from_numpy(low), coefficients).numpy()
        one_above = weighed_cost(replicas, torch.from_numpy(high), coefficients).numpy()
        there = batch.replicas[..., REPLICA_INDEX[FREE[1]]] * FREE_WEIGHTS[1]
        if signal.floor + signal.least <= signal.centre:
            np.testing.assert_allclose(at_centre, batch.replicas[..., COST], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(one_above - at_centre, there * (np.e - 1.0), rtol=2e-3, atol=1e-4)


def test_a_slope_follows_its_signal_of_each_candidate() -> None:
    for s, signal in enumerate(CANDIDATE_SIGNALS):
        batch = random_batch(4, 1, 2)
        batch.replicas[0, 1] = batch.replicas[0, 0]
        column = REPLICA_INDEX[signal.feature]
        batch.replicas[0, :, column] = signal.centre - signal.floor
        batch.replicas[0, 1, column] = signal.centre * np.exp(signal.width) - signal.floor
        coefficients = torch.zeros(SHAPE)
        coefficients[1, FIRST_CANDIDATE + s] = 1.0
        at_centre, one_above = weigh(batch, coefficients)[0]
        there = batch.replicas[0, 0, REPLICA_INDEX[FREE[1]]] * FREE_WEIGHTS[1]
        assert at_centre == pytest.approx(batch.replicas[0, 0, COST], rel=1e-4)
        assert one_above - at_centre == pytest.approx(there * (np.e - 1.0), rel=2e-3, abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**16), size=st.floats(0.0, 1e6))
def test_whatever_comes_a_weight_stays_within_its_bounds(seed: int, size: float) -> None:
    batch = random_batch(seed, 2, 4)
    batch.pool[:] = np.float32(size)
    coefficients = torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)) * 10.0
    cost = weigh(batch, coefficients)
    terms = batch.replicas[..., [REPLICA_INDEX[term] for term in FREE]] * np.array(FREE_WEIGHTS)
    most = batch.replicas[..., COST] + np.expm1(MOST_CHANGE) * terms.sum(axis=-1)
    least = batch.replicas[..., COST] - terms.sum(axis=-1)
    assert (cost <= most * 1.001 + 1e-3).all()
    assert (cost >= least * 0.999 - 1e-3).all()


def test_every_row_may_have_coefficients_of_its_own() -> None:
    batch = random_batch(3, 4, 6)
    coefficients = torch.randn((4, *SHAPE), generator=torch.Generator().manual_seed(0))
    together = weigh(batch, coefficients)
    for i in range(4):
        alone = Observation(
            batch.replicas[i : i + 1],
            batch.request[i : i + 1],
            batch.pool[i : i + 1],
            batch.mask[i : i + 1],
        )
        np.testing.assert_allclose(weigh(alone, coefficients[i])[0], together[i], rtol=1e-5)
