"""How good predictions of latency are, by load (docs/evaluation.md, "Prediction")."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fit.as_served import as_served
from steersman.agents.fit.calibration import Calibration, calibration
from steersman.agents.fit.sampling import MEASURED_LOADS, LatencySamples
from steersman.predictors.latency import LATENCY_INDEX, LEAST_S

TARGETS = ("ttft", "tpot")
LEAST_MEASURED_S = {"ttft": 0.02, "tpot": 0.002}
"""Shorter latencies are not counted in errors."""
OVERLOAD = 1.0
"""Loads from here on are overload: given apart."""
BANDS = {f"load{load * 100:.0f}": load for load in MEASURED_LOADS}

Values = NDArray[np.float64]


def quality(predicted: Values, samples: LatencySamples) -> dict[str, float]:
    """Median absolute percentage errors of p50 and coverage of p90, of both latencies.

    `<target>_mdape` and `<target>_coverage_p90` are over everything; with `_below_saturation` or
    `_load95` (and so on) they are over that part.

    Args:
        predicted: (n, 4), in the order of `LATENCY_OUTPUTS`.
        samples: n of them, from runs at `MEASURED_LOADS`.
    """
    metrics: dict[str, float] = {}
    for i, target in enumerate(TARGETS):
        known, actual = actual_s(samples, target)
        p50, p90 = predicted[known, 2 * i], predicted[known, 2 * i + 1]
        load = samples.load[known]
        error = np.abs(p50 / actual - 1.0)
        counted = actual >= LEAST_MEASURED_S[target]
        parts = {"": np.ones(len(load), dtype=np.bool_), "_below_saturation": load < OVERLOAD}
        parts |= {f"_{name}": np.isclose(load, band) for name, band in BANDS.items()}
        for name, inside in parts.items():
            if (inside & counted).any():
                metrics[f"{target}_mdape{name}"] = float(np.median(error[inside & counted]))
                metrics[f"{target}_coverage_p90{name}"] = float(np.mean((actual <= p90)[inside]))
    return metrics


def served(predicted: Values, samples: LatencySamples) -> Values:
    """Predictions with the p90 that a router would have served; as they are where times are unknown.

    The width of each run starts from nothing at the first of its samples.
    """
    if (times := samples.times) is None:
        return predicted
    found = predicted.copy()
    for run in np.unique(times.run):
        rows = np.flatnonzero(times.run == run)
        found[rows] = as_served(
            predicted[rows],
            times.decided_s[rows],
            samples.ttft_s[rows],
            samples.tpot_s[rows],
            times.ended_s[rows],
        )
    return found


def frozen_coverage(predicted: Values, samples: LatencySamples) -> dict[str, float]:
    """`<target>_coverage_p90_frozen`, and by load: of the model alone, without what serving learns."""
    return {
        name.replace("_p90", "_p90_frozen"): share
        for name, share in quality(predicted, samples).items()
        if "_coverage_p90" in name
    }


def analytic_error(samples: LatencySamples) -> dict[str, float]:
    """`<target>_mdape_analytic`: the error of the bias-corrected analytic estimate, and by load."""
    columns = [LATENCY_INDEX[f"{target}_s"] for target in TARGETS for _ in range(2)]
    found = quality(samples.rows[:, columns].astype(np.float64), samples)
    return {
        name.replace("_mdape", "_mdape_analytic"): value
        for name, value in found.items()
        if "_mdape" in name
    }


def calibrations(predicted: Values, samples: LatencySamples) -> tuple[Calibration, ...]:
    """Of TTFT and TPOT; `predicted` as for `quality`."""
    found = []
    for i, target in enumerate(TARGETS):
        known, actual = actual_s(samples, target)
        p50, p90 = predicted[known, 2 * i], predicted[known, 2 * i + 1]
        found.append(calibration(target, "s", p50, p90, actual))
    return tuple(found)


def coverage_by_load(metrics: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Target → load → share within p90, out of `quality`'s metrics."""
    return {
        target: {
            f"{load:.0%}": metrics[f"{target}_coverage_p90_{name}"]
            for name, load in BANDS.items()
            if f"{target}_coverage_p90_{name}" in metrics
        }
        for target in TARGETS
    }


def actual_s(samples: LatencySamples, target: str) -> tuple[NDArray[np.bool_], Values]:
    """Which samples have the latency (an answer of one token has no TPOT), and what it was."""
    values = samples.ttft_s if target == "ttft" else samples.tpot_s
    known = values > LEAST_S
    return known, values[known]
