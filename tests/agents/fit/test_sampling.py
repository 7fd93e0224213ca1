"""Simulated runs: varied, and what is recorded is what a router would have known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.fit.mixes import scaled, stretch
from steersman.agents.fit.sampling import (
    MEASURED_LOADS,
    draw_measured_runs,
    draw_runs,
    join,
    sample_runs,
)
from steersman.env.cluster import Cluster
from steersman.env.scenario import load_scenario, load_source
from steersman.predictors.latency import LATENCY_FEATURES, LATENCY_INDEX, latency_rows
from steersman.predictors.length import FallbackLength
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return load_scenario("demo")


@pytest.fixture(scope="module")
def trace(scenario: Scenario) -> Trace:
    return load_source(scenario).select(np.arange(4_000))


def test_samples_pair_what_was_known_with_what_happened(scenario: Scenario, trace: Trace) -> None:
    runs = draw_measured_runs(scenario, 4, np.random.default_rng(1))
    parts = sample_runs(runs, scenario, trace, 300, FallbackLength())
    assert [part.load[0] for part in parts] == list(MEASURED_LOADS[:4])
    samples = join(parts)
    assert samples.rows.shape == (len(samples), len(LATENCY_FEATURES))
    assert 900 < len(samples) < 1_500
    assert (samples.ttft_s > 0).all()
    assert np.isfinite(samples.tpot_s).all()
    assert np.isfinite(samples.rows).all()
    # The analytic estimate is of the right magnitude, so rows and outcomes belong together.
    estimate = samples.rows[:, LATENCY_INDEX["ttft_s"]]
    assert np.corrcoef(np.log(estimate), np.log(samples.ttft_s))[0, 1] > 0.5


def test_a_run_is_the_same_alone_and_among_others(scenario: Scenario, trace: Trace) -> None:
    runs = draw_runs(scenario, 3, np.random.default_rng(2))
    together = sample_runs(runs, scenario, trace, 100, FallbackLength())
    alone = sample_runs(runs[1:2], scenario, trace, 100, FallbackLength())[0]
    assert np.array_equal(together[1].rows, alone.rows)
    assert np.array_equal(together[1].ttft_s, alone.ttft_s)


def test_what_arrives_in_an_empty_cluster_is_not_counted(scenario: Scenario, trace: Trace) -> None:
    runs = draw_measured_runs(scenario, 4, np.random.default_rng(3))[3:]
    samples = sample_runs(runs, scenario, trace, 300, FallbackLength())[0]
    assert samples.rows[:5, LATENCY_INDEX["inflight"]].max() > 1


def test_runs_differ_in_hardware_load_policy_and_traffic(scenario: Scenario) -> None:
    runs = draw_runs(scenario, 12, np.random.default_rng(0))
    assert all(run.replicas == scenario.replicas for run in runs[::3])
    assert len({tuple(spec.profile.name for spec in run.replicas) for run in runs}) > 6
    models = {spec.profile.model.name for run in runs for spec in run.replicas}
    assert models == {scenario.replicas[0].profile.model.name}
    loads = sorted(run.load for run in runs)
    assert loads[0] < 0.45
    assert loads[-1] > 1.15
    assert max(np.diff(loads)) < 0.2
    assert len({run.random_share for run in runs}) > 1
    assert all(run.output_factor != 1.0 for run in runs[:8])
    assert all(run.output_factor == run.prompt_factor == 1.0 for run in runs[8:])
    assert all(run.stretch[1] == 1.0 for run in runs[8:])


def test_a_stretch_is_what_arrived_in_it(trace: Trace) -> None:
    part = stretch(trace, 0.25, 0.75)
    span_s = trace.arrival_s[-1] - trace.arrival_s[0]
    assert 0 < len(part) < len(trace)
    assert part.arrival_s[-1] - part.arrival_s[0] <= 0.5 * span_s
    assert len(stretch(trace, 0.5, 0.501)) == len(trace)


def test_scaled_traffic_has_other_lengths_and_the_same_arrivals(trace: Trace) -> None:
    longer = scaled(trace, 2.0, 1.5)
    assert np.array_equal(longer.arrival_s, trace.arrival_s)
    assert np.array_equal(longer.output_tokens, np.maximum(np.round(trace.output_tokens * 1.5), 1))
    assert np.array_equal(longer.input_tokens, trace.input_tokens * 2)
    assert scaled(trace, 1.0, 1.0) is trace


def test_prompts_with_known_prefixes_keep_their_length() -> None:
    source = load_source(load_scenario("prefix")).select(np.arange(300))
    longer = scaled(source, 2.0, 1.5)
    assert np.array_equal(longer.input_tokens, source.input_tokens)
    assert longer.output_tokens.sum() > 1.4 * source.output_tokens.sum()


def test_load_is_that_of_the_traffic_played(scenario: Scenario, trace: Trace) -> None:
    """Twice as long answers arrive about half as often at the same load."""
    run = draw_measured_runs(scenario, 1, np.random.default_rng(4))[0]
    busy = []
    for factor in (1.0, 2.0):
        part = sample_runs([replace(run, output_factor=factor)], scenario, trace, 400, FallbackLength())
        busy.append(part[0].rows[:, LATENCY_INDEX["running"]].mean())
    assert busy[1] / busy[0] == pytest.approx(1.0, abs=0.35)


def test_bulk_rows_are_the_rows_the_router_would_build(scenario: Scenario, trace: Trace) -> None:
    """`latency_rows` over all candidates, then the chosen one = over the chosen one alone."""
    cluster = Cluster(scenario.replicas, trace.select(np.arange(20)), seed=0)
    while cluster.next_request() is not None:
        seen = cluster.observe()
        every = latency_rows(seen.replicas, seen.request)
        for i in range(len(every)):
            assert np.array_equal(every[i], latency_rows(seen.replicas[i : i + 1], seen.request)[0])
        cluster.dispatch(0)
