"""Fitting the output-length model (SPEC A2): forests over the tenant's own quantiles, one graph.

The trace is split by time (EVALUATION, "Cells"): the forests grow on the first 60 %, stop early, are
chosen and calibrated on the next 15 %, and are measured on the last 25 %. What is exported is then
fitted anew on everything with the same number of trees: a service wants the newest data.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from steersman.agents.fit.calibration import calibration
from steersman.agents.fit.fitted import FittedModel, Progress, silent
from steersman.agents.fit.length_forests import LEVELS, QUANTILES, LengthForests, grow, pinball, regrow
from steersman.agents.fit.length_graph import length_graph
from steersman.env.bulk import trace_length_features
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.length import KIND, LengthModel
from steersman.traces.errors import TraceError
from steersman.traces.trace import Trace

LEAST_ROWS = 200
SPLIT = (0.6, 0.75)

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
    tell(0.1, "forests")
    made = grow(rows, outputs, first, second, seed=seed)
    metrics = {
        "rows": float(len(rows)),
        **judged(made, rows[second:], outputs[second:], outputs[:second]),
    }
    tell(0.6, "forests on everything")
    final = regrow(made, rows, outputs, seed=seed)
    tell(0.9, "export")
    data: bytes = length_graph(final, rows, seed=seed).SerializeToString()
    LengthModel.from_bytes(data)  # what would not load is not handed out
    text = {name: forest.model_to_string() for name, forest in final.forests.items()}
    tell(1.0, "done")
    held = np.maximum(made.predict(rows[second:])[:, :2], 1.0)
    deciles = calibration("output", "tokens", held[:, 0], held[:, 1], outputs[second:])
    return FittedModel(KIND, data, text, metrics, (deciles,))


def judged(made: LengthForests, rows: Rows, actual: Values, seen: Values) -> dict[str, float]:
    """Pinball losses as ratios to those of causal baselines, coverage and order (EVALUATION).

    Args:
        rows, actual: (n, len(LENGTH_FEATURES)) and (n,), held out.
        seen: outputs that came before: the constant is of these.
    """
    metrics = {"held_out_rows": float(len(actual))}
    answers = made.predict(rows)
    totals = np.zeros(3)
    for i, (level, name) in enumerate(zip(LEVELS, QUANTILES, strict=True)):
        predicted = np.maximum(answers[:, i], 1.0)
        constant = np.full(len(actual), np.quantile(seen, level))
        recent = rows[:, LENGTH_FEATURES.index(f"tenant_output_{name}")].astype(np.float64)
        rolling = np.where(recent > 0, recent, constant)
        losses = [pinball(actual, guess, level) for guess in (predicted, constant, rolling)]
        totals += losses
        metrics[f"pinball_{name}"] = losses[0]
        metrics[f"pinball_ratio_constant_{name}"] = losses[0] / max(losses[1], 1e-9)
        metrics[f"pinball_ratio_rolling_{name}"] = losses[0] / max(losses[2], 1e-9)
        metrics[f"coverage_{name}"] = float(np.mean(actual <= predicted))
    for name in (*QUANTILES, "rank"):
        forest = made.forests.get(name)
        metrics[f"trees_{name}"] = 0.0 if forest is None else float(forest.best_iteration)
    metrics["pinball_ratio_constant"] = totals[0] / max(totals[1], 1e-9)
    metrics["pinball_ratio_rolling"] = totals[0] / max(totals[2], 1e-9)
    tau = float(kendalltau(answers[:, 2], actual).statistic)
    metrics["kendall_tau"] = 0.0 if np.isnan(tau) else tau
    return metrics
