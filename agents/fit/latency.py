"""Fitting the latency model (SPEC A3): corrections of the analytic estimate, one ONNX graph.

`correction.py` says what is fitted, `sampling.py` on what. Coverage and errors are measured on other
runs: a later part of the trace, other seeds, other mixes of hardware.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fit.correction import fit_correction
from steersman.agents.fit.fitted import FittedModel, Progress, silent
from steersman.agents.fit.latency_graph import export
from steersman.agents.fit.latency_quality import (
    TARGETS,
    actual_s,
    analytic_error,
    calibrations,
    frozen_coverage,
    quality,
    served,
)
from steersman.agents.fit.sampling import (
    CALIBRATING,
    MEASURED_LOADS,
    LatencySamples,
    closed_form_factor,
    draw_measured_runs,
    draw_runs,
    join,
    sample_runs,
)
from steersman.predictors.length import FallbackLength, LengthPredictor
from steersman.traces.errors import TraceError
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

TRAIN_SHARE = 0.75
"""Of the trace, by time; the rest is for measuring."""
FOLDS = 4
LEAST_ROWS = 200


def fit_latency(
    scenario: Scenario,
    trace: Trace,
    *,
    seed: int,
    progress: Progress | None = None,
    length: LengthPredictor | None = None,
    runs: int = 36,
    decisions: int = 1_000,
) -> FittedModel:
    """Simulate, fit, measure and export the latency model of a scenario's kind of cluster.

    Args:
        scenario: its replicas, and other hardware that ships for the same model, make up the mixes.
        trace: the traffic, with known output lengths.
        seed: of the runs and of LightGBM.
        progress: told the share done.
        length: predicts output lengths, as it will in service; the fallback if None. Where it was fitted
            on the last quarter of the trace too, the measured errors are a little flattered.
        runs: simulated runs to learn from; a third as many, but at least one at each of
            `MEASURED_LOADS`, to measure on.
        decisions: counted requests per run, about.
    """
    tell = progress or silent
    tell(0.0, "simulating")
    samples, groups, held = simulate(
        scenario,
        trace,
        seed=seed,
        length=length or FallbackLength(),
        runs=runs,
        decisions=decisions,
        progress=lambda share, stage: tell(0.8 * share, stage),
    )
    fitted = fit_rows(
        samples,
        groups,
        seed=seed,
        held=held,
        progress=lambda share, stage: tell(0.8 + 0.2 * share, stage),
    )
    tell(1.0, "done")
    return fitted


def simulate(
    scenario: Scenario,
    trace: Trace,
    *,
    seed: int,
    length: LengthPredictor,
    runs: int,
    decisions: int,
    progress: Progress | None = None,
) -> tuple[LatencySamples, NDArray[np.int64], LatencySamples]:
    """Samples to learn from, their runs, and samples to measure on. Arguments as for `fit_latency`."""
    tell = progress or silent
    rng = np.random.default_rng(seed)
    factor = closed_form_factor(scenario)
    past, future = trace.split((TRAIN_SHARE, 1.0 - TRAIN_SHARE))
    plan = draw_runs(scenario, runs, rng)
    measured = draw_measured_runs(scenario, max(runs // 3, len(MEASURED_LOADS)), rng)
    share = runs / (runs + len(measured))
    seen = sample_runs(
        plan,
        scenario,
        past,
        decisions,
        length,
        factor=factor,
        on_progress=lambda done: tell(share * done, f"{runs} simulated runs"),
    )
    held = sample_runs(
        measured,
        scenario,
        future,
        decisions,
        length,
        factor=factor,
        on_progress=lambda done: tell(share + (1.0 - share) * done, f"{len(measured)} unseen runs"),
    )
    return join(seen), np.repeat(np.arange(runs), [len(part) for part in seen]), join(held)


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
            from. At least two different ones; the highest third, which are taken to be the newest,
            calibrate.
        seed: of LightGBM and of the choice of parity rows.
        held: others, to measure on; without them the metrics say only how many rows there were.
        progress: told the share done.

    Raises:
        TraceError: too few samples, or all of one group.
    """
    tell = progress or silent
    _check(samples, groups)
    order = np.unique(groups, return_inverse=True)[1]
    folds = order % FOLDS
    recent = order >= round((1.0 - CALIBRATING) * (order.max() + 1))
    corrections = []
    for i, target in enumerate(TARGETS):
        tell(0.4 * i, f"{target} forests")
        known, actual = actual_s(samples, target)
        corrections.append(
            fit_correction(samples.rows[known], actual, folds[known], recent[known], target, seed)
        )
    tell(0.8, "export")
    metrics = {"rows": float(len(samples))}
    metrics |= {f"{each.target}_weight": each.weight for each in corrections}
    if held is None:
        return export(corrections, samples.rows, metrics, seed)
    predicted = np.concatenate([each.predict(held.rows) for each in corrections], axis=1)
    metrics |= {"held_out_rows": float(len(held))}
    as_served = served(predicted, held)
    metrics |= quality(as_served, held) | frozen_coverage(predicted, held) | analytic_error(held)
    fitted = export(corrections, samples.rows, metrics, seed)
    return replace(fitted, calibration=calibrations(as_served, held))


def _check(samples: LatencySamples, groups: NDArray[np.int64]) -> None:
    if len(samples) < LEAST_ROWS:
        raise TraceError(
            f"{len(samples)} outcomes to learn latencies from, {LEAST_ROWS} are needed; collect more"
        )
    if len(np.unique(groups)) < 2:
        raise TraceError("all outcomes are of one group; give each run, or minute, a group of its own")
