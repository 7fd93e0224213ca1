"""The ONNX forest answers what LightGBM answers, on boundaries too."""

from __future__ import annotations

import lightgbm as lgb
import numpy as np
import onnxruntime as ort
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.fit.forest import forest_node, make_model, parity_rows, predict, round_down


def grow(rows: NDArray[np.float32], values: NDArray[np.float64], trees: int = 30) -> lgb.Booster:
    parameters = {"objective": "regression", "num_leaves": 31, "min_data_in_leaf": 5,
                  "use_missing": False, "num_threads": 1, "verbose": -1}  # fmt: skip
    return lgb.train(parameters, lgb.Dataset(rows, values), trees)


def run(forests: list[lgb.Booster], rows: NDArray[np.float32]) -> NDArray[np.float32]:
    node = forest_node(forests, "features", "answer")
    model = make_model([node], name="answer", features=rows.shape[1], outputs=len(forests))
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    answer: NDArray[np.float32] = session.run(None, {"features": rows})[0]
    return answer


def test_several_forests_in_one_node_answer_as_lightgbm_does() -> None:
    rng = np.random.default_rng(3)
    rows = rng.lognormal(0, 3, (6_000, 8)).astype(np.float32)
    rows[:, 1] = np.round(rows[:, 1])
    rows[:, 2] = 0.0
    targets = [np.log1p(rows[:, 0]) + rng.normal(0, 0.1, 6_000), np.sqrt(rows[:, 1] + rows[:, 3])]
    forests = [grow(rows, target.astype(np.float64)) for target in targets]
    unseen = rng.lognormal(0, 3, (4_000, 8)).astype(np.float32) * rng.choice([-1, 1], (4_000, 8)).astype(
        np.float32
    )
    for probe in (rows, unseen):
        expected = np.stack([predict(forest, probe) for forest in forests], axis=1)
        assert np.allclose(run(forests, probe), expected, rtol=1e-5, atol=1e-5)


def test_rows_on_a_threshold_go_where_lightgbm_sends_them() -> None:
    """Neighbouring floats: the threshold between them is no float32, and must not be rounded up."""
    low = np.nextafter(np.float32(0.1), np.float32(1))
    rows = np.array([[low], [np.nextafter(low, np.float32(1))]] * 50, dtype=np.float32)
    values = np.tile([0.0, 100.0], 50)
    forest = grow(rows, values)
    assert np.ptp(predict(forest, rows)) > 50
    assert np.allclose(run([forest], rows)[:, 0], predict(forest, rows), atol=1e-4)


def test_a_forest_that_never_split_is_a_constant() -> None:
    rows = np.zeros((100, 2), dtype=np.float32)
    forest = grow(rows, np.full(100, 7.0), trees=3)
    assert np.allclose(run([forest], rows), 7.0)


@given(st.floats(-1e30, 1e30))
def test_rounding_down_keeps_every_comparison(threshold: float) -> None:
    rounded = round_down(threshold)
    assert rounded <= threshold
    above = float(np.nextafter(np.float32(rounded), np.float32(np.inf)))
    assert above > threshold


def test_parity_rows_include_the_corners() -> None:
    rows = np.random.default_rng(0).normal(size=(100, 3)).astype(np.float32)
    chosen = parity_rows(rows, 5, np.random.default_rng(1))
    assert chosen.shape == (8, 3)
    assert np.array_equal(chosen[0], rows.min(axis=0))
    assert np.array_equal(chosen[2], rows.max(axis=0))
