"""Predictors from a log, as far as they are better than the champion's."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from steersman.agents.refit.attempt import refit_latency, refit_length
from steersman.agents.refit.outcomes import logged_outcomes, taught
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, Bundle
from steersman.predictors.latency import AnalyticLatency, LatencyModel
from steersman.predictors.length import FallbackLength, LengthModel
from steersman.traces.outcome_record import OutcomeRecord


def refitted_predictors(
    train: list[OutcomeRecord],
    served: Bundle,
    *,
    window: int,
    seed: int,
    tell: Callable[[float, str], None],
) -> dict[str, bytes]:
    """Those that are better than what serves on the newest part of what is learned from.

    Args:
        train: what is learned from, by arrival.
        served: the champion; what is no better stays as it has it.
        window: the newest outcomes, at most so many.
        tell: told the share that is done, and what is being done.

    Returns:
        The models, their texts and `report.json`: a reason for each, and figures.
    """
    outcomes = logged_outcomes(filter(None, map(taught, train)))
    latency = LatencyModel.from_bundle(served) or AnalyticLatency()
    length = LengthModel.from_bundle(served) or FallbackLength()
    files: dict[str, bytes] = {}
    report: dict[str, Any] = {"reasons": {}, "figures": {}}
    for share, (name, file) in enumerate((("latency", LATENCY_FILE), ("length", LENGTH_FILE))):
        tell(share / 2, name)
        fitted, verdict = (
            refit_latency(outcomes, latency, window=window, since_s=None, seed=seed)
            if name == "latency"
            else refit_length(outcomes, length, window=window, since_s=None, seed=seed)
        )
        report["reasons"][name] = verdict.reason
        report["figures"] |= {f"{name}.{key}": value for key, value in verdict.figures.items()}
        if fitted is not None and verdict.better:
            files[file] = fitted.onnx
            files |= {f"texts/{name}/{key}.txt": text.encode() for key, text in fitted.text.items()}
        elif file in served.contents:
            files[file] = served.contents[file]
    tell(1.0, "done")
    return {**files, "report.json": json.dumps(report).encode()}
