"""The latency model, fitted on a small simulated cluster."""

from __future__ import annotations

from itertools import pairwise

import lightgbm as lgb
import numpy as np
import pytest

from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import TARGETS, fit_latency
from steersman.agents.fit.sampling import draw_runs, sample_run
from steersman.env.scenario import load_scenario
from steersman.predictors.latency import LATENCY_FEATURES, LATENCY_INDEX, LatencyModel, latency_rows
from steersman.predictors.length import FallbackLength
from steersman.traces.readers import load_trace
from steersman.traces.schema import Scenario
from steersman.traces.trace import Trace

RUNS, DECISIONS = 6, 400


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("mixed")


@pytest.fixture(scope="module")
def trace() -> Trace:
    return load_trace("azure-chat").select(np.arange(4_000))


@pytest.fixture(scope="module")
def told() -> list[float]:
    return []


@pytest.fixture(scope="module")
def fitted(scenario: Scenario, trace: Trace, told: list[float]) -> FittedModel:
    return fit_latency(
        scenario,
        trace,
        seed=3,
        progress=lambda share, _: told.append(share),
        runs=RUNS,
        decisions=DECISIONS,
    )


def test_it_is_measured_on_unseen_runs_and_useful(fitted: FittedModel) -> None:
    assert fitted.metrics["rows"] > 1_500
    assert fitted.metrics["held_out_rows"] > 500
    for target in TARGETS:
        assert fitted.metrics[f"{target}_mdape"] < 0.35
        assert fitted.metrics[f"{target}_coverage_p90"] > 0.6


def test_progress_is_told_from_start_to_end(fitted: FittedModel, told: list[float]) -> None:
    assert fitted.kind == "latency"
    assert told[0] == 0.0
    assert told[-1] == 1.0
    assert all(a <= b for a, b in pairwise(told))


def test_the_served_graph_answers_as_lightgbm_does(
    scenario: Scenario, trace: Trace, fitted: FittedModel
) -> None:
    run = draw_runs(scenario, 1, np.random.default_rng(9), own_mix=False)[0]
    rows = sample_run(run, scenario, trace, 1_500, FallbackLength()).rows
    assert len(rows) > 1_000
    answer = LatencyModel.from_bytes(fitted.onnx).model.run({"features": rows})[0].astype(np.float64)
    for i, target in enumerate(TARGETS):
        forest = lgb.Booster(model_str=fitted.text[target])
        estimate = np.maximum(rows[:, LATENCY_INDEX[f"{target}_s"]].astype(np.float64), 1e-4)
        quantiles = np.log(answer[:, 2 * i : 2 * i + 2] / estimate[:, None])
        quantiles -= np.asarray(forest.predict(rows))[:, None]
        # What is left is the two residual quantiles, the same for every row.
        assert (np.ptp(quantiles, axis=0) < 1e-4).all()
        assert (quantiles[:, 1] >= quantiles[:, 0]).all()


def test_the_same_seed_gives_the_same_bytes(
    scenario: Scenario, trace: Trace, fitted: FittedModel
) -> None:
    again = fit_latency(scenario, trace, seed=3, runs=RUNS, decisions=DECISIONS)
    assert again.onnx == fitted.onnx


def test_samples_pair_what_was_known_with_what_happened(scenario: Scenario, trace: Trace) -> None:
    run = draw_runs(scenario, 1, np.random.default_rng(1), own_mix=True)[0]
    samples = sample_run(run, scenario, trace, 500, FallbackLength())
    assert samples.rows.shape == (len(samples), len(LATENCY_FEATURES))
    assert (samples.ttft_s > 0).all()
    assert np.isfinite(samples.tpot_s).all()
    assert np.isfinite(samples.rows).all()
    # The analytic estimate is of the right magnitude, so rows and outcomes belong together.
    estimate = samples.rows[:, LATENCY_INDEX["ttft_s"]]
    assert np.corrcoef(np.log(estimate), np.log(samples.ttft_s))[0, 1] > 0.5


def test_runs_differ_in_hardware_load_and_policy(scenario: Scenario) -> None:
    runs = draw_runs(scenario, 12, np.random.default_rng(0), own_mix=True)
    assert runs[0].replicas == scenario.replicas
    assert len({tuple(spec.profile.name for spec in run.replicas) for run in runs}) > 6
    models = {spec.profile.model.name for run in runs for spec in run.replicas}
    assert models == {scenario.replicas[0].profile.model.name}
    loads = [run.load for run in runs]
    assert loads == sorted(loads)
    assert loads[0] < 0.45
    assert loads[-1] > 1.0
    assert len({run.random_share for run in runs}) > 1


def test_bulk_rows_are_the_rows_the_router_would_build(scenario: Scenario, trace: Trace) -> None:
    """`latency_rows` over all candidates, then the chosen one = over the chosen one alone."""
    from steersman.env.cluster import Cluster

    cluster = Cluster(scenario.replicas, trace.select(np.arange(20)), seed=0)
    while cluster.next_request() is not None:
        seen = cluster.observe()
        every = latency_rows(seen.replicas, seen.request)
        for i in range(len(every)):
            assert np.array_equal(every[i], latency_rows(seen.replicas[i : i + 1], seen.request)[0])
        cluster.dispatch(0)
