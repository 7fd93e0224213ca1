"""The served routing policy answers exactly as the network it was exported from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.learned.export import export_policy, head_logits
from steersman.agents.learned.graph import INPUTS, policy_graph
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.served import KIND, MASKED, POLICY_FEATURES, LearnedPolicy
from steersman.agents.ranges import Ranges
from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.errors import ArtifactError
from steersman.traces.schema import Observation
from tests.agents.learned.conftest import make_network, random_batch

NETWORK = make_network(seed=7)


def exported(network: RoutingNetwork = NETWORK) -> bytes:
    seen = random_batch(1, 64, 8)
    return export_policy(
        network,
        Ranges.of(seen.replicas[seen.mask], seen.request),
        (seen.pool.min(axis=0), seen.pool.max(axis=0)),
        random_batch(2, 4, 6),
        version="test-1",
        extra={"note": "kept"},
    )


GRAPH = exported()
MODEL = OnnxModel.parse(GRAPH, kind=KIND, features=POLICY_FEATURES, source="memory")


def served(model: OnnxModel, seen: Observation) -> NDArray[np.float32]:
    """The graph's answers, (b, heads, n): it takes one observation at a time."""
    rows = [{name: getattr(seen, name)[i : i + 1] for name in INPUTS} for i in range(len(seen.mask))]
    return np.concatenate([model.run(row)[0] for row in rows])


def assert_alike(answers: NDArray[np.float32], network: RoutingNetwork, seen: Observation) -> None:
    expected = head_logits(network, seen)
    assert answers.shape == expected.shape
    np.testing.assert_allclose(answers, expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**16), size=st.integers(1, 4), replicas=st.integers(1, 64))
def test_any_pool_size(seed: int, size: int, replicas: int) -> None:
    batch = random_batch(seed, size, replicas)
    answers = served(MODEL, batch)
    assert_alike(answers, NETWORK, batch)
    allowed = np.broadcast_to(batch.mask[:, None], answers.shape)
    assert (answers[~allowed] == MASKED).all()


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e-6, 1e3, 1e9, 1e30])
def test_far_from_what_it_was_trained_on(factor: float) -> None:
    seen = random_batch(3, 4, 7)
    far = Observation(
        seen.replicas * np.float32(factor), seen.request * np.float32(factor), seen.pool, seen.mask
    )
    assert_alike(served(MODEL, far), NETWORK, far)


def test_features_that_are_not_read_and_constants_that_hardly_vary() -> None:
    network = make_network(seed=9)
    seen = random_batch(9, 64, 8)
    seen.replicas[..., :3] = 7.0 + 0.02 * seen.replicas[..., :3] / seen.replicas[..., :3].max()
    network.fit_compression(*(torch.from_numpy(getattr(seen, name)) for name in INPUTS))
    model = OnnxModel.parse(exported(network), kind=KIND, features=POLICY_FEATURES, source="memory")
    assert_alike(served(model, seen), network, seen)


@pytest.mark.parametrize("name", ["replicas", "request", "pool"])
def test_what_is_not_a_number_is_not_answered_with_one(name: str) -> None:
    seen = random_batch(4, 1, 5)
    getattr(seen, name)[..., 2] = np.nan
    seen.mask[:] = True
    assert np.isnan(served(MODEL, seen)).all()


def test_nobody_to_choose() -> None:
    seen = random_batch(5, 2, 5)
    seen.mask[:] = False
    assert (served(MODEL, seen) == MASKED).all()


def test_a_graph_that_answers_otherwise_is_not_handed_out(monkeypatch: pytest.MonkeyPatch) -> None:
    other = policy_graph(make_network(seed=8))
    monkeypatch.setattr("steersman.agents.learned.export.policy_graph", lambda _: other)
    with pytest.raises(ArtifactError, match="does not answer as when it was trained"):
        exported()


def test_the_served_policy_carries_its_version_ranges_and_notes() -> None:
    policy = LearnedPolicy(MODEL, np.random.default_rng(0))
    assert policy.version == "test-1"
    assert MODEL.metadata.extra["note"] == "kept"
    seen = random_batch(1, 64, 8)
    np.testing.assert_array_equal(policy.ranges.replica_upper, seen.replicas[seen.mask].max(axis=0))
    np.testing.assert_array_equal(policy.ranges.request_lower, seen.request.min(axis=0))


def test_a_changed_weight_is_noticed() -> None:
    import onnx

    model = onnx.load_model_from_string(GRAPH)
    weights = next(t for t in model.graph.initializer if list(t.dims) == [48, 48])
    values = onnx.numpy_helper.to_array(weights) + np.float32(0.5)
    weights.CopyFrom(onnx.numpy_helper.from_array(values, weights.name))
    with pytest.raises(ArtifactError, match="does not answer as when it was trained"):
        OnnxModel.parse(model.SerializeToString(), kind=KIND, features=POLICY_FEATURES, source="m")


def test_nothing_of_the_training_machine_is_in_the_graph() -> None:
    assert str(Path.home()).encode() not in GRAPH
    assert b"site-packages" not in GRAPH
    assert b".py" not in GRAPH
