"""The length model learns what a trace has to teach, and is served as it was fitted."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import lightgbm as lgb
import numpy as np
import onnx
import pytest

from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.length import fit_length
from steersman.agents.fit.length_forests import LengthForests, pinball
from steersman.agents.fit.length_graph import length_graph
from steersman.env.bulk import output_quantiles, trace_length_features
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.length import LengthModel
from steersman.traces.errors import TraceError
from steersman.traces.readers import load_trace
from steersman.traces.schema import Request
from steersman.traces.trace import Trace


@pytest.fixture(scope="module")
def azure() -> Trace:
    return load_trace("azure-chat").select(np.arange(6_000))


@pytest.fixture(scope="module")
def fitted(azure: Trace) -> FittedModel:
    return fit_length(azure, seed=5)


def test_it_beats_the_causal_baselines_on_a_real_trace(fitted: FittedModel) -> None:
    assert fitted.metrics["pinball_ratio_constant"] < 0.6
    assert fitted.metrics["pinball_ratio_rolling"] < 0.6
    assert 0.8 < fitted.metrics["coverage_p90"] < 0.99


@pytest.mark.parametrize(
    "names", [(), ("p50",), ("rank",), ("p90", "rank"), ("p50", "p90"), ("p50", "p90", "rank")]
)
def test_the_served_graph_answers_as_its_parts_do(azure: Trace, names: tuple[str, ...]) -> None:
    rows, outputs = trace_length_features(azure)[:1_500], azure.output_tokens[:1_500]
    rows[::7, LENGTH_FEATURES.index("wording")] = 0.4
    data = lgb.Dataset(rows, np.log(np.maximum(outputs, 1)), free_raw_data=False)
    forest = lgb.train({"objective": "regression", "verbose": -1, "num_threads": 1}, data, 8)
    made = LengthForests((200.0, 600.0), dict.fromkeys(names, forest), (1.5, -2.0))
    graph = length_graph(made, rows, seed=0).SerializeToString()
    raw = LengthModel.from_bytes(graph).model.run({"features": rows})[0]
    np.testing.assert_allclose(raw, made.predict(rows), rtol=1e-4, atol=1e-3)


def test_metadata_names_the_features_and_their_range(azure: Trace, fitted: FittedModel) -> None:
    metadata = LengthModel.from_bytes(fitted.onnx).model.metadata
    rows = trace_length_features(azure)
    assert metadata.features == LENGTH_FEATURES
    assert np.array_equal(metadata.lower, rows.min(axis=0))
    assert np.array_equal(metadata.upper, rows.max(axis=0))
    assert metadata.version


def test_the_same_seed_gives_the_same_bytes(azure: Trace, fitted: FittedModel) -> None:
    again = fit_length(azure, seed=5)
    assert again.onnx == fitted.onnx
    assert (again.text, again.metrics) == (fitted.text, fitted.metrics)


def test_it_learns_from_tenants_and_limits() -> None:
    """Tenants with different habits: the history feature alone tells them apart."""
    rng = np.random.default_rng(0)
    tenants = rng.integers(0, 3, 4_000)
    outputs = rng.poisson(np.array([20, 200, 900])[tenants]) + 1
    requests = [
        Request(f"r{i}", 0.5 * i, 100, output_tokens=int(outputs[i]), tenant=f"t{tenants[i]}")
        for i in range(4_000)
    ]
    trace = Trace.from_requests("tenants", requests)
    fitted = fit_length(trace, seed=0)
    assert fitted.metrics["pinball_ratio_constant"] < 0.2
    predicted = output_quantiles(trace, LengthModel.from_bytes(fitted.onnx))
    assert pinball(outputs.astype(float), predicted[:, 0], 0.5) < 15


def test_where_requests_say_nothing_it_stays_with_the_tenants_quantiles() -> None:
    """And its graph has no tree at all."""
    rng = np.random.default_rng(1)
    requests = [
        Request(f"r{i}", 0.5 * i, int(rng.integers(10, 3000)), output_tokens=int(rng.integers(1, 400)))
        for i in range(3_000)
    ]
    trace = Trace.from_requests("noise", requests)
    fitted = fit_length(trace, seed=0)
    assert fitted.text == {}
    assert fitted.metrics["pinball_ratio_rolling"] < 1.01
    rows = trace_length_features(trace)
    answers = LengthModel.from_bytes(fitted.onnx).predict(rows)
    blend = rows[:, LENGTH_FEATURES.index("tenant_blend_p50")]
    assert np.abs(answers[blend > 0, 0] - blend[blend > 0]).max() < 10
    assert np.allclose(answers[:, 2], np.log(answers[:, 0]), atol=1e-4)


def test_the_rank_orders_answers(fitted: FittedModel) -> None:
    assert fitted.metrics["kendall_tau"] > 0.4


def test_an_hour_is_read_only_where_the_day_is_known() -> None:
    """Answers depend on nothing but the hour."""

    def columns_read(hours: float) -> set[int]:
        rng = np.random.default_rng(2)
        at = np.sort(rng.uniform(0.0, hours, 3_000))
        outputs = np.where(at % 6.0 < 3.0, 20, 600) + rng.integers(0, 10, 3_000)
        requests = [
            Request(f"r{i}", 3600.0 * at[i], 10, output_tokens=int(outputs[i]), hour_of_day=at[i] % 24.0)
            for i in range(3_000)
        ]
        fitted = fit_length(Trace.from_requests("daily", requests), seed=0)
        return {
            column
            for node in onnx.load_from_string(fitted.onnx).graph.node
            for attribute in node.attribute
            if attribute.name == "nodes_featureids"
            for column in attribute.ints
        }

    hour = {LENGTH_FEATURES.index("hour_sin"), LENGTH_FEATURES.index("hour_cos")}
    assert hour & columns_read(96.0)
    assert not hour & columns_read(12.0)


def test_progress_is_told_from_start_to_end(azure: Trace) -> None:
    told: list[float] = []
    fit_length(azure.select(np.arange(500)), seed=0, progress=lambda share, stage: told.append(share))
    assert told[0] == 0.0
    assert told[-1] == 1.0
    assert all(a <= b for a, b in pairwise(told))


def test_unknown_lengths_are_left_out_and_too_few_are_refused(azure: Trace) -> None:
    outputs = azure.output_tokens[:600].copy()
    outputs[::2] = -1
    half = azure.select(np.arange(600)).replace(output_tokens=outputs)
    assert fit_length(half, seed=0).metrics["rows"] == 300
    with pytest.raises(TraceError, match="needs 200"):
        fit_length(azure.select(np.arange(50)), seed=0)


def test_saved_files_are_what_was_fitted(tmp_path: Path, fitted: FittedModel) -> None:
    fitted.save(tmp_path / "length")
    assert (tmp_path / "length" / "length.onnx").read_bytes() == fitted.onnx
    assert (tmp_path / "length" / "length-p50.txt").read_text() == fitted.text["p50"]
    assert json.loads((tmp_path / "length" / "length.metrics.json").read_text()) == fitted.metrics
