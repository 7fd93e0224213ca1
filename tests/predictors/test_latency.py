"""What is served as latency is always finite, positive and ordered."""

from __future__ import annotations

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from steersman.agents.fit.onnx_meta import write_metadata
from steersman.agents.samples import sample_observation
from steersman.predictors.features import REPLICA_FEATURES, REPLICA_INDEX, REQUEST_FEATURES
from steersman.predictors.latency import (
    FALLBACK_SPREAD,
    LATENCY_FEATURES,
    LATENCY_INDEX,
    LATENCY_OUTPUTS,
    LEAST_S,
    MOST_S,
    AnalyticLatency,
    LatencyModel,
    LatencyPredictor,
    latency_rows,
)
from steersman.traces.errors import ArtifactError
from steersman.traces.schema import Observation


def answering(columns: list[str]) -> bytes:
    """A model that answers four of its inputs."""
    width = len(LATENCY_FEATURES)
    indices = [LATENCY_INDEX[name] for name in columns]
    graph = helper.make_graph(
        [helper.make_node("Gather", ["features", "columns"], ["latency"], axis=1)],
        "latency",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("latency", TensorProto.FLOAT, ["rows", 4])],
        initializer=[helper.make_tensor("columns", TensorProto.INT64, [4], indices)],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    rows = np.arange(2.0 * width).reshape(2, -1)
    write_metadata(
        model,
        kind="latency",
        version="v3",
        features=LATENCY_FEATURES,
        lower=np.zeros(width),
        upper=np.ones(width),
        parity_inputs={"features": rows},
        parity_outputs=[rows[:, indices]],
    )
    data: bytes = model.SerializeToString()
    return data


MODEL = LatencyModel.from_bytes(answering(["ttft_s", "mean_ttft_s", "tpot_s", "mean_tpot_s"]))


@pytest.fixture
def seen() -> Observation:
    return sample_observation(np.random.default_rng(2), 5)


def test_rows_are_the_named_columns(seen: Observation) -> None:
    rows = latency_rows(seen.replicas, seen.request)
    assert rows.shape == (5, len(LATENCY_FEATURES))
    for i, name in enumerate(LATENCY_FEATURES):
        if name in REPLICA_INDEX:
            assert np.array_equal(rows[:, i], seen.replicas[:, REPLICA_INDEX[name]])
        elif name in REQUEST_FEATURES:
            assert (rows[:, i] == seen.request[REQUEST_FEATURES.index(name)]).all()
    ratio = seen.replicas[:, REPLICA_INDEX["ttft_s"]] / seen.replicas[:, REPLICA_INDEX["raw_ttft_s"]]
    assert np.allclose(rows[:, LATENCY_INDEX["log_bias_ttft"]], np.log(ratio), atol=1e-5)


def test_a_batch_of_clusters_is_predicted_as_each_alone() -> None:
    observations = [sample_observation(np.random.default_rng(seed), 4) for seed in range(3)]
    replicas = np.stack([seen.replicas for seen in observations])
    requests = np.stack([seen.request for seen in observations])
    for predictor in (MODEL, AnalyticLatency()):
        batch = predictor.predict(replicas, requests)
        assert batch.shape == (3, 4, len(LATENCY_OUTPUTS))
        for i, seen in enumerate(observations):
            assert np.array_equal(batch[i], predictor.predict(seen.replicas, seen.request))


def test_the_model_answers_what_the_graph_does(seen: Observation) -> None:
    answer = MODEL.predict(seen.replicas, seen.request)
    assert np.allclose(answer[:, 0], seen.replicas[:, REPLICA_INDEX["ttft_s"]])
    assert MODEL.version == "v3"


def test_without_a_model_the_analytic_estimate_serves(seen: Observation) -> None:
    answer = AnalyticLatency().predict(seen.replicas, seen.request)
    assert np.allclose(answer[:, 0], seen.replicas[:, REPLICA_INDEX["ttft_s"]])
    assert np.allclose(answer[:, 3], FALLBACK_SPREAD * seen.replicas[:, REPLICA_INDEX["tpot_s"]])
    assert AnalyticLatency().version == ""


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0, 0.0, 0.0123, 1e30])
def test_a_candidate_alone_gets_what_it_gets_among_others(value: float, seen: Observation) -> None:
    replicas = seen.replicas.copy()
    replicas[1, REPLICA_INDEX["ttft_s"]] = value
    for predictor in (MODEL, AnalyticLatency()):
        answers = predictor.predict(replicas, seen.request)
        assert np.array_equal(predictor.predict(replicas[1:2], seen.request), answers[1:2])


@pytest.mark.parametrize("predictor", [MODEL, AnalyticLatency()])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, -1.0, 0.0, 1e30])
def test_absurd_inputs_give_bounded_answers(
    predictor: LatencyPredictor, value: float, seen: Observation
) -> None:
    replicas: NDArray[np.float32] = np.full((3, len(REPLICA_FEATURES)), value, dtype=np.float32)
    with np.errstate(all="ignore"):
        answer = predictor.predict(replicas, seen.request)
    assert ((answer >= LEAST_S) & (answer <= MOST_S)).all()


def test_a_model_for_other_features_is_refused() -> None:
    model = onnx.load_model_from_string(answering(["ttft_s"] * 4))
    for entry in model.metadata_props:
        if entry.key == "steersman.features":
            entry.value = entry.value.replace("running", "bustling")
    with pytest.raises(ArtifactError, match="it wants bustling; it does not know running"):
        LatencyModel.from_bytes(model.SerializeToString())
