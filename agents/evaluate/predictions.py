"""How good predictions are, on arrivals that training did not see (docs/evaluation.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeGuard

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.course import Protocol, course
from steersman.agents.fit.as_served import as_served
from steersman.agents.fit.calibration import Calibration, calibration
from steersman.agents.policies import make_policy
from steersman.env.bulk import trace_length_features
from steersman.env.scenario import load_source
from steersman.predictors.latency import LATENCY_OUTPUTS, LatencyPredictor
from steersman.predictors.length import LengthPredictor
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

Float64 = NDArray[np.float64]

LEAST_S = {"ttft": 0.02, "tpot": 0.002}
"""Shorter actual latencies do not count in relative errors."""
UNITS = {"output": "tokens", "ttft": "s", "tpot": "s"}


@dataclass(frozen=True)
class Quality:
    """One predictor of one quantity, on n cases."""

    predictor: str
    quantity: str
    """`output`, `ttft` or `tpot`."""
    where: str
    """The cell, or the part of the trace."""
    cases: int
    mdape: float
    """Median of |p50 - actual| / actual."""
    coverage_p90: float
    """Share of actual values at or below the predicted p90, of a latency with the width learned by then
    (`predictors/width.py`)."""
    pinball: float
    """Pinball loss at p50 and p90 together, in the quantity's unit."""
    calibration: Calibration | None
    """None without cases."""
    coverage_p90_frozen: float | None = None
    """The same of a latency model alone, without what serving learns."""

    def rows(self) -> list[dict[str, object]]:
        """As figures for a benchmark file."""
        name = f"{self.quantity} of {self.predictor}, {self.where}"
        unit = UNITS[self.quantity]
        figures = [
            ("MdAPE", self.mdape, "ratio"),
            ("coverage p90", self.coverage_p90, "ratio"),
            ("pinball", self.pinball, unit),
        ]
        if self.coverage_p90_frozen is not None:
            figures.append(("coverage p90, frozen", self.coverage_p90_frozen, "ratio"))
        return [
            {
                "name": f"{figure} of {name}",
                "value": value,
                "lo": None,
                "hi": None,
                "unit": unit_of,
                "note": f"{self.cases} cases",
            }
            for figure, value, unit_of in figures
        ]


def pinball(actual: Float64, predicted: Float64, level: float) -> float:
    """Mean pinball loss: what the `level` quantile minimises."""
    error = actual - predicted
    return float(np.mean(np.maximum(level * error, (level - 1.0) * error)))


def judge(
    predictor: str,
    quantity: str,
    where: str,
    actual: Float64,
    p50: Float64,
    p90: Float64,
    *,
    frozen_p90: Float64 | None = None,
) -> Quality:
    """Compare predicted quantiles with what happened. All arrays (n,).

    Args:
        p90: as served.
        frozen_p90: of the model alone, where that is another.
    """
    counted = actual >= LEAST_S.get(quantity, 1.0)
    error = np.abs(p50[counted] - actual[counted]) / actual[counted]
    return Quality(
        predictor=predictor,
        quantity=quantity,
        where=where,
        cases=int(counted.sum()),
        mdape=float(np.median(error)) if counted.any() else float("nan"),
        coverage_p90=float(np.mean(actual <= p90)) if len(actual) else float("nan"),
        pinball=pinball(actual, p50, 0.5) + pinball(actual, p90, 0.9) if len(actual) else float("nan"),
        calibration=calibration(quantity, UNITS[quantity], p50, p90, actual) if len(actual) else None,
        coverage_p90_frozen=float(np.mean(actual <= frozen_p90)) if _any(frozen_p90) else None,
    )


def _any(values: Float64 | None) -> TypeGuard[Float64]:
    return values is not None and len(values) > 0


def judge_length(predictors: Mapping[str, LengthPredictor], scenario: Scenario) -> list[Quality]:
    """Output length, on the evaluation part of the scenario's trace as it was recorded.

    A constant, the quantiles of the training part, is judged beside the given predictors.
    """
    seen = load_source(scenario, "train").output_tokens
    trace = load_source(scenario, "evaluation")
    known = trace.output_tokens >= 1
    actual = trace.output_tokens[known].astype(np.float64)
    features = trace_length_features(trace)[known]
    constant = np.quantile(seen[seen >= 1], (0.5, 0.9))
    predicted = {name: predictor.predict(features) for name, predictor in predictors.items()}
    predicted["constant"] = np.tile(constant, (len(actual), 1))
    return [
        judge(name, "output", scenario.trace, actual, both[:, 0], both[:, 1])
        for name, both in predicted.items()
    ]


def judge_latency(
    predictors: Mapping[str, LatencyPredictor],
    scenario: Scenario,
    protocol: Protocol,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> list[Quality]:
    """TTFT and TPOT of the chosen replicas, at the moment of the choice, under marginal cost.

    Args:
        on_progress: called with 1 after each load and seed.
    """
    source = load_source(scenario, protocol.split)
    found: list[Quality] = []
    for load in protocol.loads:
        parts = []
        for seed in protocol.seeds:
            parts.append(_decisions(predictors, scenario, load, seed, protocol, source))
            if on_progress is not None:
                on_progress(1.0)
        actual = np.concatenate([part[0] for part in parts])
        for name in predictors:
            served = np.concatenate([part[1][name] for part in parts])
            modelled = np.concatenate([part[2][name] for part in parts])
            where = f"{scenario.name} {load:.0%}"
            for i, quantity in enumerate(("ttft", "tpot")):
                known = actual[:, i] > 0  # an answer of one token has no TPOT
                p50, p90 = served[known, 2 * i : 2 * i + 2].T
                frozen_p90 = modelled[known, 2 * i + 1]
                found.append(
                    judge(name, quantity, where, actual[known, i], p50, p90, frozen_p90=frozen_p90)
                )
    return found


def _decisions(
    predictors: Mapping[str, LatencyPredictor],
    scenario: Scenario,
    load: float,
    seed: int,
    protocol: Protocol,
    source: Trace,
) -> tuple[Float64, dict[str, Float64], dict[str, Float64]]:
    """Actual (n, 2) TTFT and TPOT of the measured requests, and (n, 4) of each predictor: as served, and
    without the widths that the run's outcomes, also before the measured ones, teach."""
    run = course(scenario, load, seed, protocol, source)
    cluster = run.cluster()
    policy = make_policy("marginal-cost", seed=seed)
    predicted = {name: np.full((len(run.trace), len(LATENCY_OUTPUTS)), np.nan) for name in predictors}
    while (row := cluster.next_request()) is not None:
        seen = cluster.observe()
        choice = policy.decide(seen).choice
        for name, predictor in predictors.items():
            predicted[name][row] = predictor.predict(seen.replicas[choice : choice + 1], seen.request)[0]
        cluster.dispatch(choice)
    cluster.finish(protocol.drain_s)
    outcomes = cluster.outcomes()
    ended, counted = outcomes.ok, outcomes.ok & (outcomes.arrival_s >= protocol.warmup_s)
    arrival_s, e2e_s = outcomes.arrival_s[ended], outcomes.e2e_s[ended]
    ttft_s, tpot_s = outcomes.ttft_s[ended], outcomes.tpot_s[ended]
    served = {}
    for name, values in predicted.items():
        whole = as_served(values[ended], arrival_s, ttft_s, tpot_s, arrival_s + e2e_s)
        served[name] = whole[counted[ended]]
    actual = np.stack((outcomes.ttft_s[counted], outcomes.tpot_s[counted]), axis=1)
    return actual, served, {name: values[counted] for name, values in predicted.items()}
