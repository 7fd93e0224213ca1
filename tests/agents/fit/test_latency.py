"""The latency model, fitted on a small simulated cluster."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.fit.correction import fit_correction
from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import fit_latency, fit_rows, simulate
from steersman.agents.fit.latency_quality import TARGETS, analytic_error, quality
from steersman.agents.fit.llmd import llmd_predictions
from steersman.agents.fit.sampling import MEASURED_LOADS, LatencySamples
from steersman.env.scenario import load_scenario, load_source
from steersman.predictors.latency import (
    LATENCY_FEATURES,
    LATENCY_INDEX,
    LATENCY_OUTPUTS,
    LEAST_S,
    LOAD_FEATURES,
    LatencyModel,
)
from steersman.predictors.length import FallbackLength
from steersman.traces.errors import TraceError
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

RUNS, DECISIONS = 9, 250
Samples = tuple[LatencySamples, NDArray[np.int64], LatencySamples]


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("demo")


@pytest.fixture(scope="module")
def trace(scenario: Scenario) -> Trace:
    return load_source(scenario).select(np.arange(6_000))


@pytest.fixture(scope="module")
def simulated(scenario: Scenario, trace: Trace) -> Samples:
    return simulate(scenario, trace, seed=3, length=FallbackLength(), runs=RUNS, decisions=DECISIONS)


@pytest.fixture(scope="module")
def fitted(simulated: Samples) -> FittedModel:
    samples, groups, held = simulated
    return fit_rows(samples, groups, seed=3, held=held)


@pytest.fixture(scope="module")
def model(fitted: FittedModel) -> LatencyModel:
    return LatencyModel.from_bytes(fitted.onnx)


def served(model: LatencyModel, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    return model.model.run({"features": rows.astype(np.float32)})[0].astype(np.float64)


def test_it_is_measured_on_unseen_runs_and_useful(fitted: FittedModel) -> None:
    assert fitted.metrics["rows"] > 1_500
    assert fitted.metrics["held_out_rows"] > 1_000
    for target in TARGETS:
        assert fitted.metrics[f"{target}_mdape_below_saturation"] < 0.2
        assert fitted.metrics[f"{target}_coverage_p90"] > 0.7
        for load in MEASURED_LOADS:
            assert f"{target}_mdape_load{100 * load:.0f}" in fitted.metrics


def test_fitting_from_a_scenario_is_simulating_and_fitting(
    scenario: Scenario, trace: Trace, fitted: FittedModel
) -> None:
    told: list[float] = []
    again = fit_latency(
        scenario,
        trace,
        seed=3,
        progress=lambda share, _: told.append(share),
        runs=RUNS,
        decisions=DECISIONS,
    )
    assert again.onnx == fitted.onnx
    assert told[0] == 0.0
    assert told[-1] == 1.0
    assert all(a <= b for a, b in pairwise(told))


def test_the_served_graph_answers_as_lightgbm_does(simulated: Samples, model: LatencyModel) -> None:
    samples, groups, held = simulated
    order = np.unique(groups, return_inverse=True)[1]
    for i, target in enumerate(TARGETS):
        actual = samples.ttft_s if target == "ttft" else samples.tpot_s
        known = actual > LEAST_S
        reference = fit_correction(
            samples.rows[known], actual[known], order[known] % 4, (order >= 6)[known], target, 3
        )
        answer = served(model, held.rows)[:, 2 * i : 2 * i + 2]
        assert np.allclose(answer, reference.predict(held.rows), rtol=1e-3)


def test_quantiles_never_cross(simulated: Samples, model: LatencyModel) -> None:
    answer = served(model, simulated[2].rows)
    assert (answer[:, 1] >= answer[:, 0]).all()
    assert (answer[:, 3] >= answer[:, 2]).all()


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(LOAD_FEATURES),
    factor=st.floats(1.0, 50.0),
    added=st.floats(0.0, 500.0),
    seed=st.integers(0, 2**16),
)
def test_more_load_is_never_faster(
    simulated: Samples, model: LatencyModel, name: str, factor: float, added: float, seed: int
) -> None:
    rows = simulated[2].rows
    few = rows[np.random.default_rng(seed).integers(len(rows), size=16)]
    more = few.copy()
    more[:, LATENCY_INDEX[name]] = factor * few[:, LATENCY_INDEX[name]] + added
    # Beyond float32's last digits, in which the same sum may come out in another order.
    assert (served(model, more) >= served(model, few) * (1.0 - 1e-5)).all()


def test_where_nothing_can_be_learned_the_estimate_stays(simulated: Samples) -> None:
    """Latencies that are the estimate times a factor drawn at random."""
    samples, groups, _ = simulated
    noise = np.random.default_rng(0).lognormal(0.0, 0.3, len(samples))
    estimate = samples.rows[:, LATENCY_INDEX["tpot_s"]].astype(np.float64)
    found = fit_correction(samples.rows, estimate * noise, groups % 3, groups >= 0, "tpot", 0)
    median = found.predict(samples.rows)[:, 0]
    assert found.weight <= 0.5
    assert np.median(np.abs(median / estimate - 1.0)) < 0.05


def test_a_wider_residual_is_foreseen(simulated: Samples) -> None:
    """The spread learns where answers scatter, and the share within p90 is right on both sides."""
    samples, groups, _ = simulated
    rng = np.random.default_rng(1)
    wild = samples.rows[:, LATENCY_INDEX["running"]] > np.median(
        samples.rows[:, LATENCY_INDEX["running"]]
    )
    noise = np.exp(np.where(wild, 0.5, 0.05) * rng.normal(size=len(samples)))
    actual = samples.rows[:, LATENCY_INDEX["tpot_s"]].astype(np.float64) * noise
    found = fit_correction(samples.rows, actual, groups % 3, groups >= 0, "tpot", 0)
    covered = actual <= found.predict(samples.rows)[:, 1]
    assert 0.8 < covered[wild].mean() < 0.97
    assert 0.8 < covered[~wild].mean() < 0.99


def test_too_little_to_learn_from_is_said(simulated: Samples) -> None:
    samples, groups, _ = simulated
    few = LatencySamples(samples.rows[:50], samples.ttft_s[:50], samples.tpot_s[:50], samples.load[:50])
    with pytest.raises(TraceError, match="50 outcomes to learn latencies from, 200 are needed"):
        fit_rows(few, groups[:50], seed=0)
    with pytest.raises(TraceError, match="all outcomes are of one group"):
        fit_rows(samples, np.zeros_like(groups), seed=0)


def test_llm_d_s_model_predicts_positive_latencies_from_its_own_features(
    simulated: Samples, monkeypatch: pytest.MonkeyPatch
) -> None:
    samples, _, held = simulated
    monkeypatch.setattr("steersman.agents.fit.llmd.TREES", 40)
    rows = held.rows[:500]
    answer = llmd_predictions(samples, rows, seed=0)
    assert answer.shape == (500, len(LATENCY_OUTPUTS))
    assert (answer > 0).all()
    blind = rows.copy()
    kept = ["kv_usage", "input_tokens", "waiting", "running", "uncached_tokens"]
    blind[:, [i for i, name in enumerate(LATENCY_FEATURES) if name not in kept]] = 0.0
    assert np.array_equal(answer, llmd_predictions(samples, blind, seed=0))


def test_errors_are_medians_over_what_counts() -> None:
    rows = np.zeros((4, len(LATENCY_FEATURES)), dtype=np.float32)
    rows[:, LATENCY_INDEX["ttft_s"]] = 1.0
    rows[:, LATENCY_INDEX["tpot_s"]] = 0.01
    samples = LatencySamples(
        rows,
        ttft_s=np.array([1.0, 2.0, 4.0, 0.001]),
        tpot_s=np.array([0.0, 0.02, 0.02, 0.02]),
        load=np.array([0.4, 0.4, 1.2, 0.4]),
    )
    predicted = np.tile((1.0, 2.0, 0.02, 0.03), (4, 1))
    found = quality(predicted, samples)
    assert found["ttft_mdape"] == 0.5  # 0, 0.5 and 0.75: 1 ms is not counted
    assert found["ttft_mdape_below_saturation"] == 0.25
    assert found["ttft_mdape_load120"] == 0.75
    assert found["ttft_coverage_p90"] == 0.75
    assert found["tpot_mdape"] == 0.0
    assert "tpot_mdape_load80" not in found
    assert analytic_error(samples)["tpot_mdape_analytic"] == pytest.approx(0.5)
