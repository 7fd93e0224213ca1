"""Fitting the output-length model (SPEC A2): two LightGBM quantile forests, one ONNX graph.

The trace is split by time (EVALUATION, "Cells"): the forests grow on the first 60 %, stop early and are
calibrated on the next 15 %, and are measured on the last 25 %. What is exported is then fitted anew on
everything with the same number of trees: a service wants the newest data.

Calibration is conformal (Romano, Patterson & Candès 2019): each quantile is moved by the quantile of
its own residuals on data it has not seen.
"""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from steersman.agents.fit.fitted import FittedModel, Progress, silent, version_of
from steersman.agents.fit.forest import forest_node, make_model, parity_rows, predict
from steersman.agents.fit.onnx_meta import write_metadata
from steersman.predictors.bulk import trace_length_features
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.length import KIND, LengthModel
from steersman.traces.errors import TraceError
from steersman.traces.trace import Trace

LEVELS = (0.5, 0.9)
NAMES = ("p50", "p90")
LEAST_ROWS = 200
SPLIT = (0.6, 0.75)
MOST_TREES = 200
PATIENCE = 20
PARAMETERS: dict[str, Any] = {
    "objective": "quantile",
    "num_leaves": 31,
    "learning_rate": 0.06,
    "min_data_in_leaf": 30,
    "feature_pre_filter": False,
    "use_missing": False,
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}

Rows = NDArray[np.float32]
Values = NDArray[np.float64]


def fit_length(trace: Trace, *, seed: int, progress: Progress | None = None) -> FittedModel:
    """Fit, measure and export the output-length model of a trace.

    Args:
        trace: rows without a known output length are left out.
        seed: of LightGBM and of the choice of parity rows.
        progress: told the share done.

    Raises:
        TraceError: too few rows to learn from.
    """
    known = trace.output_tokens >= 1
    rows = trace_length_features(trace)[known]
    outputs = trace.output_tokens[known].astype(np.float64)
    return fit_length_rows(rows, outputs, seed=seed, source=f"trace '{trace.name}'", progress=progress)


def fit_length_rows(
    rows: Rows, outputs: Values, *, seed: int, source: str = "", progress: Progress | None = None
) -> FittedModel:
    """The same on any table of requests in order of time: a trace's, or those a router logged.

    Args:
        rows: (n, len(LENGTH_FEATURES)), as known when each request came.
        outputs: (n,), output tokens, at least 1.
        source: where they are from, for errors.

    Raises:
        TraceError: too few rows to learn from.
    """
    tell = progress or silent
    tell(0.0, "features")
    if len(rows) < LEAST_ROWS:
        raise TraceError(
            f"{source or 'length model'}: {len(rows)} requests with known output tokens, "
            f"a length model needs {LEAST_ROWS}; give a longer trace"
        )
    first, second = (int(share * len(rows)) for share in SPLIT)
    forests, shifts, trees = [], [], []
    for i, level in enumerate(LEVELS):
        tell(0.1 + 0.3 * i, f"{NAMES[i]} forest")
        forest = _grow(rows, outputs, level, seed, slice(0, first), slice(first, second))
        trees.append(max(forest.best_iteration, 1))
        shifts.append(_shift(outputs[first:second], predict(forest, rows[first:second]), level))
        forests.append(forest)
    held = rows[second:], outputs[second:]
    metrics = _measure(forests, shifts, *held, outputs[:second], rows)
    final = []
    for i, level in enumerate(LEVELS):
        tell(0.7 + 0.1 * i, f"{NAMES[i]} forest on everything")
        final.append(_grow_fixed(rows, outputs, level, seed, trees[i]))
    tell(0.9, "export")
    fitted = _export(final, shifts, rows, metrics, seed)
    tell(1.0, "done")
    return fitted


def pinball(actual: Values, predicted: Values, level: float) -> float:
    """Mean pinball loss: what the `level` quantile minimises."""
    error = actual - predicted
    return float(np.mean(np.maximum(level * error, (level - 1.0) * error)))


def _grow(
    rows: Rows, outputs: Values, level: float, seed: int, train: slice, tune: slice
) -> lgb.Booster:
    data = lgb.Dataset(rows[train], outputs[train], free_raw_data=False)
    check = lgb.Dataset(rows[tune], outputs[tune], reference=data, free_raw_data=False)
    return lgb.train(
        {**PARAMETERS, "alpha": level, "seed": seed},
        data,
        MOST_TREES,
        valid_sets=[check],
        callbacks=[lgb.early_stopping(PATIENCE, verbose=False)],
    )


def _grow_fixed(rows: Rows, outputs: Values, level: float, seed: int, trees: int) -> lgb.Booster:
    return lgb.train({**PARAMETERS, "alpha": level, "seed": seed}, lgb.Dataset(rows, outputs), trees)


def _shift(actual: Values, predicted: Values, level: float) -> float:
    """What must be added for a share `level` of the actual values to lie below.

    An upper quantile is never lowered: traffic drifts, and too few tokens foreseen cost more than
    too many.
    """
    shift = float(np.quantile(actual - predicted, level))
    return shift if level == 0.5 else max(shift, 0.0)


def _measure(
    forests: list[lgb.Booster],
    shifts: list[float],
    rows: Rows,
    actual: Values,
    seen: Values,
    all_rows: Rows,
) -> dict[str, float]:
    """Pinball losses as ratios to those of causal baselines, and coverage (EVALUATION, "Prediction")."""
    columns = (LENGTH_FEATURES.index("tenant_output_p50"), LENGTH_FEATURES.index("tenant_output_p90"))
    metrics = {"rows": float(len(all_rows)), "held_out_rows": float(len(actual))}
    totals = np.zeros(3)
    for forest, shift, level, name, column in zip(forests, shifts, LEVELS, NAMES, columns, strict=True):
        predicted = np.maximum(predict(forest, rows) + shift, 1.0)
        constant = np.full(len(actual), np.quantile(seen, level))
        recent = rows[:, column].astype(np.float64)
        rolling = np.where(recent > 0, recent, constant)
        losses = [pinball(actual, guess, level) for guess in (predicted, constant, rolling)]
        totals += losses
        metrics[f"pinball_{name}"] = losses[0]
        metrics[f"pinball_ratio_constant_{name}"] = losses[0] / max(losses[1], 1e-9)
        metrics[f"pinball_ratio_rolling_{name}"] = losses[0] / max(losses[2], 1e-9)
        metrics[f"coverage_{name}"] = float(np.mean(actual <= predicted))
        metrics[f"trees_{name}"] = float(forest.best_iteration)
    metrics["pinball_ratio_constant"] = totals[0] / max(totals[1], 1e-9)
    metrics["pinball_ratio_rolling"] = totals[0] / max(totals[2], 1e-9)
    return metrics


def _export(
    forests: list[lgb.Booster], shifts: list[float], rows: Rows, metrics: dict[str, float], seed: int
) -> FittedModel:
    shift = numpy_helper.from_array(np.array(shifts, dtype=np.float32), "shift")
    nodes = [
        forest_node(forests, "features", "quantiles"),
        helper.make_node("Add", ["quantiles", "shift"], [KIND]),
    ]
    model = make_model(
        nodes, name=KIND, features=len(LENGTH_FEATURES), outputs=len(LEVELS), initializers=[shift]
    )
    text = {name: forest.model_to_string() for name, forest in zip(NAMES, forests, strict=True)}
    checked = parity_rows(rows, 13, np.random.default_rng(seed))
    write_metadata(
        model,
        kind=KIND,
        version=version_of(text, *shifts),
        features=LENGTH_FEATURES,
        lower=rows.min(axis=0),
        upper=rows.max(axis=0),
        parity_inputs={"features": checked},
        parity_outputs=[
            np.stack([predict(f, checked) + s for f, s in zip(forests, shifts, strict=True)], axis=1)
        ],
    )
    data: bytes = model.SerializeToString()
    LengthModel.from_bytes(data)  # what would not load is not handed out
    return FittedModel(KIND, data, text, metrics)
