"""The served routing policy answers exactly as the network it was exported from."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.learned.export import export_policy, head_logits
from steersman.agents.learned.network import MASKED
from steersman.agents.learned.served import KIND, POLICY_FEATURES, LearnedPolicy
from steersman.agents.ranges import Ranges
from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.errors import ArtifactError
from tests.agents.learned.conftest import make_network, random_batch

NETWORK = make_network(seed=7)


def exported() -> bytes:
    seen = random_batch(1, 64, 8)
    return export_policy(
        NETWORK,
        Ranges.of(seen.replicas[seen.mask], seen.request),
        (seen.pool.min(axis=0), seen.pool.max(axis=0)),
        random_batch(2, 4, 6),
        version="test-1",
        extra={"note": "kept"},
    )


GRAPH = exported()
MODEL = OnnxModel.parse(GRAPH, kind=KIND, features=POLICY_FEATURES, source="memory")


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**16), size=st.integers(1, 4), replicas=st.integers(1, 64))
def test_any_batch_and_pool_size(seed: int, size: int, replicas: int) -> None:
    batch = random_batch(seed, size, replicas)
    inputs = {name: getattr(batch, name) for name in ("replicas", "request", "pool", "mask")}
    served = MODEL.run(inputs)[0]
    expected = head_logits(NETWORK, batch)
    assert served.shape == expected.shape
    np.testing.assert_allclose(served, expected, rtol=1e-4, atol=1e-4)
    assert (served[~np.broadcast_to(batch.mask[:, None], served.shape)] >= -20.0).sum() == 0
    assert (served[np.broadcast_to(~batch.mask[:, None], served.shape)] == MASKED).all()


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
