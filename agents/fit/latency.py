"""Fitting the latency model (SPEC A3): corrections of the analytic estimate, one ONNX graph.

Two forests, for TTFT and TPOT, learn the log of actual over analytic (bias-corrected) latency under the
absolute loss, whose minimiser is the median. On unseen hardware its median errors were 2 to 18 % smaller
than those of predicting the latency itself under monotone constraints (which LightGBM refuses with this
loss); the physics comes in through the estimate.

The quantiles are conformal: those of the log residuals on simulated runs which the forests had not
seen (cross-validated by run), added to the prediction. Coverage and errors are measured on other runs:
later part of the trace, other seeds, other mixes of hardware.
"""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

from steersman.agents.fit.fitted import FittedModel, Progress, silent, version_of
from steersman.agents.fit.forest import forest_node, make_model, parity_rows, predict
from steersman.agents.fit.onnx_meta import write_metadata
from steersman.agents.fit.sampling import LatencySamples, draw_runs, join, sample_run
from steersman.predictors.latency import (
    KIND,
    LATENCY_FEATURES,
    LATENCY_INDEX,
    LATENCY_OUTPUTS,
    LEAST_S,
    LatencyModel,
)
from steersman.predictors.length import FallbackLength, LengthPredictor
from steersman.traces.errors import TraceError
from steersman.traces.schema import Scenario
from steersman.traces.trace import Trace

TARGETS = ("ttft", "tpot")
LEVELS = (0.5, 0.9)
TRAIN_SHARE = 0.75
"""Of the trace, by time; the rest is for measuring."""
FOLDS = 3
LEAST_ROWS = 200
TREES = 150
PARAMETERS: dict[str, Any] = {
    "objective": "regression_l1",
    "num_leaves": 15,
    "learning_rate": 0.08,
    "min_data_in_leaf": 40,
    "feature_pre_filter": False,
    "use_missing": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
LEAST_MEASURED_S = {"ttft": 0.02, "tpot": 0.002}
"""Shorter latencies are not counted in errors (EVALUATION, "Prediction")."""
LOAD_BANDS = {"low": (0.0, 0.6), "middle": (0.6, 0.95), "high": (0.95, np.inf)}

Rows = NDArray[np.float32]
Values = NDArray[np.float64]


def fit_latency(
    scenario: Scenario,
    trace: Trace,
    *,
    seed: int,
    progress: Progress | None = None,
    length: LengthPredictor | None = None,
    runs: int = 18,
    decisions: int = 2_000,
) -> FittedModel:
    """Simulate, fit, measure and export the latency model of a scenario's kind of cluster.

    Args:
        scenario: its replicas, and other hardware that ships for the same model, make up the mixes.
        trace: the traffic, with known output lengths.
        seed: of the runs and of LightGBM.
        progress: told the share done.
        length: predicts output lengths, as it will in service; the fallback if None. Where it was fitted
            on the last quarter of the trace too, the measured errors are a little flattered.
        runs: simulated runs to learn from; a third as many to measure on.
        decisions: requests per run, about.
    """
    tell = progress or silent
    tell(0.0, "simulating")
    rng = np.random.default_rng(seed)
    predictor = length or FallbackLength()
    past, future = trace.split((TRAIN_SHARE, 1.0 - TRAIN_SHARE))
    plan = [(run, past) for run in draw_runs(scenario, runs, rng, own_mix=True)]
    plan += [(run, future) for run in draw_runs(scenario, max(runs // 3, 2), rng, own_mix=False)]
    parts = []
    for i, (run, part) in enumerate(plan):
        parts.append(sample_run(run, scenario, part, decisions, predictor))
        tell(0.7 * (i + 1) / len(plan), f"simulated run {i + 1} of {len(plan)}")
    seen, held = join(parts[:runs]), join(parts[runs:])
    groups = np.repeat(np.arange(runs), [len(part) for part in parts[:runs]])
    fitted = fit_rows(
        seen, groups, seed=seed, held=held, progress=lambda share, stage: tell(0.7 + 0.3 * share, stage)
    )
    tell(1.0, "done")
    return fitted


def fit_rows(
    samples: LatencySamples,
    groups: NDArray[np.int64],
    *,
    seed: int,
    held: LatencySamples | None = None,
    progress: Progress | None = None,
) -> FittedModel:
    """Fit, calibrate and export the latency model on any table of decisions and what became of them.

    Args:
        samples: simulated, or logged by a router; see `LatencySamples`.
        groups: (len(samples),), what belongs together (a run, a minute of service): samples of one group
            resemble each other, so that a residual counts only where its whole group was not learned
            from. At least two different ones.
        seed: of LightGBM and of the choice of parity rows.
        held: others, to measure on; without them the metrics say only how many rows there were.
        progress: told the share done.

    Raises:
        TraceError: too few samples, or all of one group.
    """
    tell = progress or silent
    _check(samples, groups)
    folds = np.unique(groups, return_inverse=True)[1] % FOLDS
    forests, quantiles = [], []
    for i, target in enumerate(TARGETS):
        tell(0.4 * i, f"{target} forest")
        forest, residuals = _fit(samples, target, folds, seed)
        forests.append(forest)
        quantiles.append([float(np.quantile(residuals, level)) for level in LEVELS])
    tell(0.8, "export")
    metrics = {"rows": float(len(samples))}
    if held is not None:
        metrics |= _measure(forests, quantiles, held)
    return _export(forests, quantiles, samples.rows, metrics, seed)


def _check(samples: LatencySamples, groups: NDArray[np.int64]) -> None:
    if len(samples) < LEAST_ROWS:
        raise TraceError(
            f"{len(samples)} outcomes to learn latencies from, {LEAST_ROWS} are needed; collect more"
        )
    if len(np.unique(groups)) < 2:
        raise TraceError("all outcomes are of one group; give each run, or minute, a group of its own")


def _fit(
    samples: LatencySamples, target: str, folds: NDArray[np.int64], seed: int
) -> tuple[lgb.Booster, Values]:
    """The forest of one target, and its log residuals on runs it did not see."""
    known, actual = _actual(samples, target)
    rows, fold = samples.rows[known], folds[known]
    wanted = np.log(actual) - _log_estimate(rows, target)
    residuals = np.zeros(len(rows))
    for k in range(FOLDS):
        out = fold == k
        if out.any() and not out.all():
            residuals[out] = wanted[out] - predict(_grow(rows[~out], wanted[~out], seed), rows[out])
    return _grow(rows, wanted, seed), residuals


def _grow(rows: Rows, wanted: Values, seed: int) -> lgb.Booster:
    return lgb.train({**PARAMETERS, "seed": seed}, lgb.Dataset(rows, wanted), TREES)


def _actual(samples: LatencySamples, target: str) -> tuple[NDArray[np.bool_], Values]:
    """Which samples have the latency (an answer of one token has no TPOT), and what it was."""
    values = samples.ttft_s if target == "ttft" else samples.tpot_s
    known = values > LEAST_S
    return known, values[known]


def _log_estimate(rows: Rows, target: str) -> Values:
    estimate = rows[:, LATENCY_INDEX[f"{target}_s"]].astype(np.float64)
    return np.log(np.maximum(estimate, LEAST_S))


def _measure(
    forests: list[lgb.Booster], quantiles: list[list[float]], held: LatencySamples
) -> dict[str, float]:
    """Median absolute errors, overall and by load, beside the analytic estimate's; coverage of p90."""
    metrics = {"held_out_rows": float(len(held))}
    for forest, levels, target in zip(forests, quantiles, TARGETS, strict=True):
        known, actual = _actual(held, target)
        rows, load = held.rows[known], held.load[known]
        estimate = _log_estimate(rows, target)
        log_median = estimate + predict(forest, rows)
        error = np.abs(np.exp(log_median + levels[0]) / actual - 1.0)
        baseline = np.abs(np.exp(estimate) / actual - 1.0)
        counted = actual >= LEAST_MEASURED_S[target]
        covered = actual <= np.exp(log_median + levels[1])
        metrics[f"{target}_mdape"] = _median(error[counted])
        metrics[f"{target}_mdape_analytic"] = _median(baseline[counted])
        metrics[f"{target}_coverage_p90"] = float(np.mean(covered))
        for band, (low, high) in LOAD_BANDS.items():
            inside = counted & (load >= low) & (load < high)
            if inside.any():
                metrics[f"{target}_mdape_load_{band}"] = _median(error[inside])
                metrics[f"{target}_coverage_p90_load_{band}"] = float(np.mean(covered[inside]))
    return metrics


def _median(values: Values) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _export(
    forests: list[lgb.Booster],
    quantiles: list[list[float]],
    rows: Rows,
    metrics: dict[str, float],
    seed: int,
) -> FittedModel:
    flat = [value for levels in quantiles for value in levels]
    model = make_model(
        [forest_node(forests, "features", "corrections"), *_assembly()],
        name=KIND,
        features=len(LATENCY_FEATURES),
        outputs=len(LATENCY_OUTPUTS),
        initializers=_constants(flat),
    )
    text = {name: forest.model_to_string() for name, forest in zip(TARGETS, forests, strict=True)}
    checked = parity_rows(rows, 13, np.random.default_rng(seed))
    expected = [
        np.exp(_log_estimate(checked, target) + predict(forest, checked) + level)
        for forest, levels, target in zip(forests, quantiles, TARGETS, strict=True)
        for level in levels
    ]
    write_metadata(
        model,
        kind=KIND,
        version=version_of(text, *flat),
        features=LATENCY_FEATURES,
        lower=rows.min(axis=0),
        upper=rows.max(axis=0),
        parity_inputs={"features": checked},
        parity_outputs=[np.stack(expected, axis=1)],
    )
    data: bytes = model.SerializeToString()
    LatencyModel.from_bytes(data)  # what would not load is not handed out
    return FittedModel(KIND, data, text, metrics)


def _assembly() -> list[NodeProto]:
    """From corrections (rows, 2) to latencies (rows, 4): exp(log(estimate) + correction + quantile)."""
    node = helper.make_node
    return [
        node("Gather", ["features", "estimate_columns"], ["estimates"], axis=1),
        node("Max", ["estimates", "least_s"], ["bounded"]),
        node("Log", ["bounded"], ["log_estimates"]),
        node("Add", ["log_estimates", "corrections"], ["log_medians"]),
        node("Gather", ["log_medians", "output_columns"], ["log_each"], axis=1),
        node("Add", ["log_each", "quantiles"], ["log_answers"]),
        node("Exp", ["log_answers"], [KIND]),
    ]


def _constants(quantiles: list[float]) -> list[TensorProto]:
    estimates = [LATENCY_INDEX[f"{target}_s"] for target in TARGETS]
    outputs = [i for i in range(len(TARGETS)) for _ in LEVELS]
    return [
        numpy_helper.from_array(np.array(estimates, dtype=np.int64), "estimate_columns"),
        numpy_helper.from_array(np.array(LEAST_S, dtype=np.float32), "least_s"),
        numpy_helper.from_array(np.array(outputs, dtype=np.int64), "output_columns"),
        numpy_helper.from_array(np.array(quantiles, dtype=np.float32), "quantiles"),
    ]
