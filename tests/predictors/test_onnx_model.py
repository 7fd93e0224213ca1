"""A model that loads is the model that was trained; everything else is refused in one line."""

from __future__ import annotations

import hashlib
import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.errors import ArtifactError
from tests.predictors.graphs import FEATURES, ROWS, double_graph, double_model, with_entry

GOOD = double_model()


def parse(data: bytes) -> OnnxModel:
    return OnnxModel.parse(data, kind="double", features=FEATURES, source="m.onnx")


def refusal(data: bytes) -> str:
    with pytest.raises(ArtifactError) as error:
        parse(data)
    message = str(error.value)
    assert message.startswith("m.onnx: ")
    assert "\n" not in message
    return message


def test_a_good_model_answers_and_tells_what_it_is() -> None:
    model = parse(double_model(extra={"note": "kept"}))
    (answer,) = model.run({"features": ROWS})
    assert np.array_equal(answer, ROWS * 2)
    assert model.metadata.kind == "double"
    assert model.metadata.features == FEATURES
    assert model.metadata.lower.tolist() == [0, 0, 0]
    assert model.metadata.upper.tolist() == [1, 1, 1]
    assert dict(model.metadata.extra) == {"note": "kept"}


def test_a_model_can_be_sent_to_another_process() -> None:
    model = parse(double_model(extra={"note": "kept"}))
    received = pickle.loads(pickle.dumps(model))
    asked = {"features": np.array([[1.0, 2.0, 3.0]], dtype=np.float32)}
    assert np.array_equal(received.run(asked)[0], model.run(asked)[0])
    assert received.metadata.extra == {"note": "kept"}


def test_load_reads_a_file_and_checks_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(GOOD)
    checksum = hashlib.sha256(GOOD).hexdigest()
    model = OnnxModel.load(path, kind="double", features=FEATURES, sha256=checksum)
    assert model.source == str(path)
    with pytest.raises(ArtifactError, match="SHA-256"):
        OnnxModel.load(path, kind="double", features=FEATURES, sha256="0" * 64)


def test_a_missing_file_and_a_directory_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no such model file"):
        OnnxModel.load(tmp_path / "none.onnx", kind="double", features=FEATURES)
    with pytest.raises(ArtifactError, match="cannot be read"):
        OnnxModel.load(tmp_path, kind="double", features=FEATURES)


@pytest.mark.parametrize("size", [0, 1, 10, len(GOOD) // 2, len(GOOD) - 1])
def test_a_truncated_file_is_refused(size: int) -> None:
    refusal(GOOD[:size])


@given(st.binary(max_size=200))
@settings(max_examples=50, deadline=None)
def test_noise_is_refused(data: bytes) -> None:
    refusal(data)


@given(st.integers(0, len(GOOD) - 1), st.integers(1, 255))
@settings(max_examples=150, deadline=None)
def test_a_flipped_byte_never_escapes_as_another_error(position: int, flip: int) -> None:
    damaged = bytearray(GOOD)
    damaged[position] ^= flip
    with suppress(ArtifactError):
        # Harmless, or refused: a name or a free text changed.
        assert np.allclose(parse(bytes(damaged)).run({"features": ROWS})[0], ROWS * 2)


@pytest.mark.parametrize("key", ["kind", "version", "features", "lower", "upper", "parity"])
def test_missing_metadata_is_named(key: str) -> None:
    assert f"'steersman.{key}' is missing" in refusal(with_entry(GOOD, f"steersman.{key}", None))


def test_a_foreign_model_is_refused() -> None:
    assert "is missing" in refusal(double_graph().SerializeToString())


def test_another_kind_is_refused() -> None:
    assert "kind 'policy', expected 'double'" in refusal(double_model(kind="policy"))


def test_other_features_are_named() -> None:
    message = refusal(double_model(features=("a", "b", "d")))
    assert "it wants d" in message
    assert "it does not know c" in message


def test_another_order_of_features_is_refused() -> None:
    assert "another order, from 'a' on" in refusal(double_model(features=("b", "a", "c")))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("features", "nonsense"),
        ("features", "{}"),
        ("lower", "[1, 2]"),
        ("lower", "[0, 0, NaN]"),
        ("upper", '["x", 0, 0]'),
        ("upper", "[[0], 0, 0]"),
        ("parity", "[]"),
        ("parity", "{}"),
        ("parity", '{"inputs": {"features": [[1, 2, 3]]}, "outputs": []}'),
        ("parity", '{"inputs": {"features": [[1, 2], [3]]}, "outputs": [[1]]}'),
        ("parity", '{"inputs": {"features": [[1, 2]]}, "outputs": [[[2, 4]]]}'),
        ("parity", '{"inputs": {"features": [[1, 2, 3]]}, "outputs": [[[2, 4]]]}'),
        ("parity", '{"inputs": {"features": [[1, 2, 3]]}, "outputs": [[[2, 4, 6]], [[1]]]}'),
    ],
)
def test_malformed_metadata_is_refused(key: str, value: str) -> None:
    refusal(with_entry(GOOD, f"steersman.{key}", value))


def test_a_graph_that_computes_something_else_is_refused() -> None:
    assert "does not answer as when it was trained" in refusal(double_model(outputs=[ROWS * 2.1]))


def test_answers_that_are_not_finite_are_refused() -> None:
    assert "not finite" in refusal(double_model(op="Div", outputs=[np.ones_like(ROWS)]))


def test_weights_outside_the_file_are_refused() -> None:
    model = onnx.load_model_from_string(GOOD)
    weight = model.graph.initializer.add()
    weight.name, weight.data_type = "w", onnx.TensorProto.FLOAT
    weight.dims.extend([3])
    weight.data_location = onnx.TensorProto.EXTERNAL
    place = weight.external_data.add()
    place.key, place.value = "location", "weights.bin"
    model.graph.node[0].input[1] = "w"
    refusal(model.SerializeToString())


def test_many_threads_load_and_run_at_once() -> None:
    shared = parse(GOOD)

    def work(factor: int) -> bool:
        rows = ROWS * factor
        mine = parse(GOOD)
        return all(np.array_equal(m.run({"features": rows})[0], rows * 2) for m in (shared, mine))

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(work, range(1, 65)))


def test_serving_needs_onnxruntime_alone() -> None:
    """The predictors of the router import no training library, however indirectly.

    Those that compile run in a process beside it.
    """
    program = (
        "import importlib, pkgutil, sys\n"
        "import steersman.predictors as package\n"
        "for module in pkgutil.iter_modules(package.__path__, package.__name__ + '.'):\n"
        "    if module.name.rpartition('.')[2] not in ('compile', 'machine_code'):\n"
        "        importlib.import_module(module.name)\n"
        "heavy = 'onnx torch numba lightgbm sklearn pandas mlflow scipy matplotlib gymnasium'.split()\n"
        "print(','.join(name for name in heavy if name in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
