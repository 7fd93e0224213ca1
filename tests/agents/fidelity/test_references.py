"""A slice of every reference, so that the benchmark cannot rot. Its bounds are wide: it is no figure."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steersman.agents.fidelity import aibrix, curves, llama2_70b, real_vllm, vidur
from steersman.agents.fidelity.comparison import Comparison, median_error, perturbed_mean, quantiles

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
