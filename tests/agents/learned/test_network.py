from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.learned.export import head_logits
from steersman.agents.learned.graph import coefficients_of, policy_graph
from steersman.agents.learned.network import Compress
from steersman.agents.learned.served import MASKED
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.traces.errors import ArtifactError
from steersman.traces.schema import Observation
from tests.agents.learned.conftest import make_network, random_batch

NETWORK = make_network()
UNTRAINED = make_network(seed=1, is_plain=True, initial_residual=0.0)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), replicas=st.integers(1, 64))
def test_reordering_the_candidates_reorders_the_logits(seed: int, replicas: int) -> None:
    batch = random_batch(seed, 2, replicas)
    order = np.random.default_rng(seed).permutation(replicas)
    reordered = Observation(batch.replicas[:, order], batch.request, batch.pool, batch.mask[:, order])
    before, after = head_logits(NETWORK, batch), head_logits(NETWORK, reordered)
    np.testing.assert_allclose(after, before[:, :, order], rtol=1e-4, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), replicas=st.integers(1, 64))
def test_masked_replicas_have_no_probability_and_no_influence(seed: int, replicas: int) -> None:
    batch = random_batch(seed, 2, replicas)
    logits = head_logits(NETWORK, batch)
    assert logits.shape == (2, 3, replicas)
    assert np.isfinite(logits).all()
    probabilities = torch.softmax(torch.from_numpy(logits), dim=-1).numpy()
    masked = np.broadcast_to(~batch.mask[:, None], logits.shape)
    assert (logits[masked] == MASKED).all()
    assert (probabilities[masked] == 0.0).all()
    np.testing.assert_allclose(probabilities.sum(axis=-1), 1.0, rtol=1e-5)

    garbage = np.where(batch.mask[..., None], batch.replicas, np.float32(12345.0))
    changed = head_logits(NETWORK, Observation(garbage, batch.request, batch.pool, batch.mask))
    np.testing.assert_allclose(changed, logits, rtol=1e-4, atol=1e-4)


def test_padding_with_masked_replicas_changes_nothing() -> None:
    batch = random_batch(3, 4, 5)
    replicas = np.concatenate([batch.replicas, np.zeros_like(batch.replicas)], axis=1)
    mask = np.concatenate([batch.mask, np.zeros_like(batch.mask)], axis=1)
    padded = head_logits(NETWORK, Observation(replicas, batch.request, batch.pool, mask))
    np.testing.assert_allclose(padded[:, :, :5], head_logits(NETWORK, batch), rtol=1e-4, atol=1e-4)


def test_nobody_allowed_stays_finite() -> None:
    batch = random_batch(4, 1, 3)
    batch.mask[:] = False
    assert (head_logits(NETWORK, batch) == MASKED).all()


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**16), replicas=st.integers(1, 64))
def test_an_untrained_policy_is_the_marginal_cost_policy(seed: int, replicas: int) -> None:
    batch = random_batch(seed, 2, replicas)
    cost = np.where(batch.mask, batch.replicas[..., REPLICA_INDEX["marginal_cost"]], np.inf)
    logits = head_logits(UNTRAINED, batch)
    for head in range(logits.shape[1]):
        np.testing.assert_array_equal(logits[:, head].argmax(axis=-1), cost.argmin(axis=-1))


def test_heads_differ() -> None:
    logits = head_logits(NETWORK, random_batch(5, 8, 8))
    assert (np.ptp(logits, axis=1).max(axis=-1) > 1e-3).all()


def test_compression_keeps_order_and_bounds_what_is_extreme() -> None:
    rng = np.random.default_rng(0)
    rows = torch.from_numpy(rng.lognormal(3.0, 2.0, (1000, 2)).astype(np.float32))
    compress = Compress(2)
    compress.fit(rows)
    seen = compress(rows)
    assert abs(float(seen.mean())) < 0.05
    assert 0.9 < float(seen.std()) < 1.1
    probes = torch.tensor([[-1e12], [-1.0], [0.0], [1.0], [1e12]]).expand(5, 2)
    squeezed = compress(probes)
    assert bool((squeezed.diff(dim=0) >= 0).all())
    assert float(squeezed.abs().max()) <= 6.0


def test_a_feature_that_never_varied_says_nothing_when_it_serves() -> None:
    compress = Compress(1)
    compress.fit(torch.full((10, 1), 80.0))
    quiet = compress(torch.tensor([[80.0], [0.0], [1e6]]))
    np.testing.assert_allclose(quiet.numpy(), 0.0, atol=1e-6)


def test_what_training_could_not_teach_does_not_move_the_choice() -> None:
    batch = random_batch(6, 64, 6)
    unseen = [REQUEST_INDEX[name] for name in ("prefix_blocks", "has_code", "turns")]
    batch.request[:, unseen] = 0.0
    network = make_network(seed=2)
    network.fit_compression(
        *map(torch.from_numpy, (batch.replicas, batch.request, batch.pool, batch.mask))
    )
    assert {*unseen, REQUEST_INDEX["hour_sin"]} <= set(network.unread_request_features())
    assert REQUEST_INDEX["input_tokens"] not in network.unread_request_features()
    before = head_logits(network, batch)
    batch.request[:, unseen] = (300.0, 1.0, 9.0)
    np.testing.assert_allclose(head_logits(network, batch), before, rtol=1e-5, atol=1e-5)


def test_the_graph_tells_how_it_weighs_the_terms() -> None:
    told = coefficients_of(policy_graph(NETWORK))
    # It holds them beside the logarithms of the weights, in single precision.
    np.testing.assert_allclose(told, NETWORK.coefficients, rtol=1e-6, atol=1e-6)
    other = policy_graph(NETWORK)
    del other.graph.initializer[:]
    with pytest.raises(ArtifactError, match="train it again"):
        coefficients_of(other)
