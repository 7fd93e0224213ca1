"""A slice of every reference, so that the benchmark cannot rot. Its bounds are wide: it is no figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steersman.agents.fidelity import (
    aibrix,
    curves,
    llama2_70b,
    real_vllm,
    servers,
    vidur,
    vidur_engine,
)
from steersman.agents.fidelity.comparison import Comparison, median_error, perturbed_mean, quantiles
from steersman.env.profiles import load_profile

ROOT = Path(__file__).resolve().parents[3]
DATA = ROOT / "benchmarks" / "data" / "fidelity"


def test_the_data_is_small_and_says_where_it_is_from() -> None:
    files = sorted(DATA.iterdir())
    assert sum(file.stat().st_size for file in files) < 1_500_000
    source = (DATA / "SOURCE.md").read_text()
    assert all(file.name in source for file in files if file.name != "SOURCE.md")


def test_vidur_is_matched_on_a_slice() -> None:
    wanted = (vidur.FITTED[0], "l8_conv1000_x4_vllm_lorfixed")
    runs = []
    for run in vidur.load_runs(DATA / "vidur.parquet"):
        if run.name in wanted:
            columns = ("arrival_s", "prompt", "output", "ttft_s", "e2e_s")
            runs.append(replace(run, **{name: getattr(run, name)[:300] for name in columns}))
    found = vidur.compare(runs, perturbed=1)
    assert {c.group for c in found} == {"fitted", "predicted"}
    assert median_error(found, "e2e_p50") < 0.1
    assert median_error(found, "ttft_p50") < 0.1


def test_a_real_run_is_predicted_from_its_first_requests() -> None:
    runs = [
        r for r in real_vllm.load_runs(DATA / "real_vllm.csv.gz") if r.name == "RTXPRO6000_Qwen3-32B"
    ]
    found = real_vllm.compare(runs, perturbed=1)
    for metric in ("ttft_p50", "tpot_p50", "e2e_p50"):
        assert median_error(found, metric) < 0.05


def test_curves_have_the_measured_shape_on_a_slice() -> None:
    points = [
        p
        for p in curves.load_points(DATA / "measured_curves.csv")
        if p.profile == "h100-tp4-llama-3.1-70b" and p.input_tokens == p.output_tokens == 1024
    ]
    assert sorted(p.concurrency for p in points) == [4, 8, 16, 32, 64]
    found = curves.compare(points, perturbed=1, rounds=4)
    assert median_error(found, "tpot_mean") < 0.3


def test_a_closed_loop_keeps_its_clients_busy() -> None:
    trace = curves.closed_loop(curves.Point("x", 1000, 100, 4, 1.0, 1.0), 3)
    assert len(trace) == 12
    assert (trace.parent[:4] == -1).all()
    assert (trace.parent[4:] == np.arange(8)).all()
    assert (trace.input_tokens >= 800).all()
    assert (trace.input_tokens <= 1000).all()


def test_the_70b_table_has_the_shape_of_our_profiles() -> None:
    found = llama2_70b.compare(llama2_70b.load_table(DATA / "llama2_70b.csv"))
    assert median_error(found, "token") < 0.05
    assert median_error(found, "prompt") < 0.15


def test_aibrix_is_replayed_on_a_slice() -> None:
    rates = (0.9, 1.7)
    runs = [
        run
        for run in aibrix.load_runs(DATA / "aibrix.csv.gz")
        if run.rate_rps in rates and run.setup in aibrix.SETUPS
    ]
    found = aibrix.compare(runs, perturbed=1)
    assert len(found) == len(aibrix.SETUPS)
    share, pairs, wrong = aibrix.concordant_share(found)
    assert pairs > len(wrong)
    assert share > 0.7


def test_pairs_are_counted_at_one_rate_and_ties_are_dropped() -> None:
    def at(run: str, theirs: float, ours: float) -> Comparison:
        return Comparison("aibrix", run, "ttft_p50", theirs, ours)

    found = [at("a 1/s", 1.0, 1.0), at("b 1/s", 2.0, 3.0), at("c 1/s", 2.1, 0.5), at("a 2/s", 9.0, 9.0)]
    share, pairs, wrong = aibrix.concordant_share(found)
    assert (share, pairs, wrong) == (0.5, 2, ["a and c at 1/s"])


def test_figures_are_quantiles_and_means_over_perturbed_runs() -> None:
    found = quantiles({"ttft": np.array([1.0, np.nan, 3.0])})
    assert found["ttft_p50"] == pytest.approx(2.0)
    mean = perturbed_mean(lambda cost: {"sum": float(cost.sum())}, np.ones(4), runs=50)
    assert mean["sum"] == pytest.approx(4.0, rel=1e-3)
    assert mean["sum"] != 4.0
    assert np.isnan(median_error([], "ttft_p50"))


def test_the_bundled_profiles_serve_as_measured_servers_do() -> None:
    points = [p for p in servers.load_points(DATA / "measured_32b.csv") if p.concurrency in (8, 32)]
    assert np.median(np.abs(servers.end_to_end_errors(points))) < 0.04
    kernels = servers.BUNDLED.off(load_profile(points[0].profile))
    assert servers.BUNDLED.on(kernels).prefill_token_s == pytest.approx(
        load_profile(points[0].profile).prefill_token_s
    )
    assert np.median(np.abs(servers.end_to_end_errors(points, servers.Server(0.0, 0.0, 1.0)))) > 0.08


def test_what_a_server_adds_is_found_again() -> None:
    truth = servers.Server(0.003, 8e-5, 1.3)
    points = []
    for point in servers.load_points(DATA / "measured_32b.csv"):
        if point.concurrency in (8, 64) and point.output_tokens == 128 and "tp4" in point.profile:
            ttft_s, tpot_s = servers.play(point, truth)
            points.append(replace(point, ttft_s=ttft_s, tpot_s=tpot_s))
    found = servers.fit(points, rounds=3)
    assert found.host_s == pytest.approx(truth.host_s, rel=0.1)
    assert found.host_seq_s == pytest.approx(truth.host_seq_s, rel=0.1)
    assert found.prefill_factor == pytest.approx(truth.prefill_factor, rel=0.05)


def test_fp8_halves_what_it_halves_and_no_more() -> None:
    profile = load_profile("h100-tp4-llama-3.1-70b")
    halved = curves.as_fp8(profile)
    read_s = profile.model.weights_gib * 1024**3 / 4 / 3.35e12
    assert halved.decode_base_s == pytest.approx(profile.decode_base_s - read_s / 2)
    assert 0.5 < halved.prefill_token_s / profile.prefill_token_s < 0.8
    assert halved.host_overhead_s == profile.host_overhead_s
    assert halved.kv_capacity_tokens > 2 * profile.kv_capacity_tokens


def test_the_engine_plays_a_slice_of_vidur_with_the_costs_fitted_to_it() -> None:
    wanted = ("l8_conv1000_x1_vllm_round_robin", "l8_conv1000_x4_sarathi_lorfixed")
    runs = []
    for run in vidur.load_runs(DATA / "vidur.parquet"):
        if run.name in wanted:
            columns = ("arrival_s", "prompt", "output", "ttft_s", "e2e_s")
            runs.append(replace(run, **{name: getattr(run, name)[:300] for name in columns}))
    found = vidur_engine.compare(runs, perturbed=1)
    assert {c.group for c in found} == {"costs from it", "predicted"}
    assert median_error(found, "e2e_p50") < 0.1
    assert median_error(found, "ttft_p50") < 0.1


def test_a_pipeline_is_all_stages_of_vidurs_cost() -> None:
    run = next(
        r
        for r in vidur.load_runs(DATA / "vidur.parquet")
        if r.name.startswith("l70tp2pp2_conv1000_x1_s")
    )
    cost = np.array([0.01, 2e-5, 3e-5, 1e-5, 1e-7, 3e-9])
    profile = vidur_engine.profile_of(run, cost)
    assert profile.pipeline_parallel == 2
    assert profile.decode_base_s == pytest.approx(0.02)
    assert profile.max_batched_tokens == vidur_engine.CHUNK_TOKENS
    # A chunk of whole tiles, by the profile and in Vidur's features.
    features = np.array([1.0, 512.0, 384.0, 384.0, 0.0, 512.0**2])
    by_profile = (
        profile.prefill_base_s + 512 * profile.prefill_token_s + 512**2 * profile.prefill_token2_s
    )
    assert by_profile == pytest.approx(2 * (features @ cost), rel=0.06)
