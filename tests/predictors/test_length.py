"""What is served as output length is always sound, with a model or without."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray
from onnx import TensorProto, helper

from steersman.agents.fit.onnx_meta import write_metadata
from steersman.predictors.bundle import load_bundle, write_bundle
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.length import (
    FALLBACK_P50,
    FALLBACK_P90,
    LENGTH_OUTPUTS,
    MOST_TOKENS,
    WORDING,
    FallbackLength,
    LengthModel,
    LengthPredictor,
)
from steersman.traces.errors import ArtifactError

INPUT = LENGTH_FEATURES.index("input_tokens")
LIMIT = LENGTH_FEATURES.index("max_tokens")
TENANT = LENGTH_FEATURES.index("tenant_blend_p50")
COLUMNS = [INPUT, TENANT, LENGTH_FEATURES.index("turns")]


def three_columns() -> bytes:
    """A model that answers three of its inputs: whatever a test wants it to answer."""
    graph = helper.make_graph(
        [helper.make_node("Gather", ["features", "columns"], ["length"], axis=1)],
        "length",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", len(LENGTH_FEATURES)])],
        [helper.make_tensor_value_info("length", TensorProto.FLOAT, ["rows", 3])],
        initializer=[helper.make_tensor("columns", TensorProto.INT64, [3], COLUMNS)],
    )
    model: onnx.ModelProto = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8
    )
    rows = np.arange(2.0 * len(LENGTH_FEATURES)).reshape(2, -1)
    write_metadata(
        model,
        kind="length",
        version="v7",
        features=LENGTH_FEATURES,
        lower=np.zeros(len(LENGTH_FEATURES)),
        upper=np.ones(len(LENGTH_FEATURES)),
        parity_inputs={"features": rows},
        parity_outputs=[rows[:, COLUMNS]],
    )
    data: bytes = model.SerializeToString()
    return data


def row(p50: float, p90: float, limit: float = 0.0, rank: float = 3.0) -> NDArray[np.float32]:
    features = np.zeros((1, len(LENGTH_FEATURES)), dtype=np.float32)
    features[0, [*COLUMNS, LIMIT]] = p50, p90, rank, limit
    return features


FLOATS = st.floats(width=32, allow_nan=True, allow_infinity=True)


@pytest.mark.parametrize("predictor", [LengthModel.from_bytes(three_columns()), FallbackLength()])
@given(p50=FLOATS, p90=FLOATS, rank=FLOATS, limit=st.integers(0, 4096))
def test_answers_are_ordered_and_within_the_limits(
    predictor: LengthPredictor, p50: float, p90: float, rank: float, limit: int
) -> None:
    answers = predictor.predict(row(p50, p90, limit, rank))
    assert answers.shape == (1, len(LENGTH_OUTPUTS))
    assert 1 <= answers[0, 0] <= answers[0, 1] <= MOST_TOKENS
    assert 0 <= answers[0, 2] <= np.log(MOST_TOKENS)
    if limit:
        assert answers[0, 1] <= limit
        assert answers[0, 2] <= np.log(limit)


def test_the_model_answers_what_the_graph_does() -> None:
    model = LengthModel.from_bytes(three_columns())
    assert model.version == "v7"
    assert model.predict(row(10, 30)).tolist() == [[10, 30, 3]]
    assert model.predict(row(30, 10)).tolist() == [[30, 30, 3]]
    assert model.predict(row(10, 30, limit=20)).tolist() == [[10, 20, pytest.approx(np.log(20))]]


def test_a_row_without_a_finite_answer_gets_the_fallbacks() -> None:
    model = LengthModel.from_bytes(three_columns())
    both = np.concatenate([row(np.nan, 0), row(10, 30)])
    assert model.predict(both)[:, :2].tolist() == [[FALLBACK_P50, FALLBACK_P90], [10, 30]]


def test_without_a_model_the_tenant_tells_and_else_constants() -> None:
    features = np.zeros((2, len(LENGTH_FEATURES)), dtype=np.float32)
    features[0, TENANT : TENANT + 2] = 40, 90
    assert FallbackLength(p50=100, p90=300).predict(features)[:, :2].tolist() == [
        [40, 90],
        [100, 300],
    ]
    assert FallbackLength().version == ""


@given(st.lists(st.floats(width=32, allow_nan=False), min_size=4, max_size=4))
@example([float("inf"), 0.0, -746.0, 0.0])
def test_a_row_alone_gets_what_it_gets_among_others(values: list[float]) -> None:
    features = np.zeros((1, len(LENGTH_FEATURES)), dtype=np.float32)
    features[0, [TENANT, TENANT + 1, WORDING, LIMIT]] = values
    with np.errstate(all="ignore"):
        alone = FallbackLength().predict(features)
        among = FallbackLength().predict(np.concatenate([features, row(10, 30)]))
    assert np.array_equal(alone[0], among[0], equal_nan=True)


def test_a_bundle_may_have_a_length_model(tmp_path: Path) -> None:
    def bundle(files: dict[str, bytes]) -> LengthModel | None:
        write_bundle(
            tmp_path / "b",
            files,
            version="1",
            code_version="0",
            created=datetime(2026, 1, 1, tzinfo=UTC),
        )
        return LengthModel.from_bundle(load_bundle(tmp_path / "b"))

    assert bundle({}) is None
    model = bundle({"length.onnx": three_columns()})
    assert model is not None
    assert model.predict(row(10, 30)).tolist() == [[10, 30, 3]]
    with pytest.raises(ArtifactError, match=r"length\.onnx"):
        bundle({"length.onnx": b""})
