"""The names of the latency figures, and the timing of the router's call."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

from steersman.agents.evaluate.latency_figures import latency_figures, named
from steersman.agents.fit.latency import fit_rows
from steersman.agents.fit.sampling import LatencySamples
from steersman.predictors.latency import LATENCY_FEATURES, LATENCY_INDEX

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "scoring.py"


def test_metrics_of_a_fit_become_figures() -> None:
    metrics = {
        "ttft_mdape": 0.1,
        "ttft_mdape_load95": 0.2,
        "ttft_mdape_analytic": 0.3,
        "tpot_mdape_analytic_below_saturation": 0.4,
        "tpot_coverage_p90_load40": 0.9,
        "tpot_coverage_p90_frozen_load40": 0.95,
        "tpot_weight": 1.0,
        "rows": 7.0,
    }
    assert named(metrics) == {
        "ttft.mdape": 0.1,
        "ttft.mdape.load95": 0.2,
        "ttft.mdape.analytic": 0.3,
        "tpot.mdape.analytic.below_saturation": 0.4,
        "tpot.p90_coverage.load40": 0.9,
        "tpot.p90_coverage_frozen.load40": 0.95,
    }


def test_all_models_are_measured_on_the_same_unseen_runs() -> None:
    figures, fitted = latency_figures("demo", 0, runs=6, decisions=120)
    assert fitted.metrics["held_out_rows"] > 500
    for name in ("ttft.mdape", "tpot.mdape", "ttft.mdape.load95", "ttft.p90_coverage"):
        assert 0.0 < figures[name] <= 1.0
        assert f"llmd.{name}" in figures
    assert "ttft.mdape.analytic" in figures
    assert abs(figures["tpot.p90_coverage"] - 0.9) <= abs(figures["tpot.p90_coverage_frozen"] - 0.9)
    assert "ttft.p90_coverage_frozen.load95" in figures


def test_the_router_s_call_is_timed_without_training_libraries(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    rows = rng.uniform(0.1, 2.0, (400, len(LATENCY_FEATURES))).astype(np.float32)
    estimate = rows[:, LATENCY_INDEX["ttft_s"]].astype(np.float64)
    samples = LatencySamples(rows, ttft_s=2.0 * estimate, tpot_s=estimate, load=np.full(400, np.nan))
    path = tmp_path / "latency.onnx"
    path.write_bytes(fit_rows(samples, np.arange(400) % 4, seed=0).onnx)
    answer = subprocess.run(
        [sys.executable, SCRIPT, path, "40"], capture_output=True, text=True, check=True
    )
    figures = json.loads(answer.stdout)
    assert 0.0 < figures["score64_p50_us"] <= figures["score64_p99_us"]
    assert figures["score_batch_16x64_us"] > 0.0
