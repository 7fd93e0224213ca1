"""Figures of how well predictions are calibrated, as files to keep with a model or an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from steersman.agents.fit.calibration import Calibration
from steersman.agents.report.figures import coverage_bars, predicted_against_actual

WANTED = 0.9
"""Share that should lie within p90."""


def calibration_files(
    calibrations: Sequence[Calibration], coverage: Mapping[str, Mapping[str, float]]
) -> dict[str, bytes]:
    """SVG files by name: p50 against what happened by decile, and the share within p90.

    Args:
        calibrations: one per quantity.
        coverage: quantity → part (a load, say) → share within p90; may be empty.
    """
    files = {}
    for each in calibrations:
        deciles = {f"{10 * (i + 1)}": float(share) for i, share in enumerate(each.covered)}
        files[f"{each.quantity}-calibration.svg"] = predicted_against_actual(
            each.predicted, each.actual, quantity=each.quantity, unit=each.unit
        )
        files[f"{each.quantity}-coverage.svg"] = coverage_bars(
            deciles, label="percentile of predicted p50", wanted=WANTED
        )
    for quantity, parts in coverage.items():
        if parts:
            files[f"{quantity}-coverage-by-load.svg"] = coverage_bars(
                parts, label="load over saturation", wanted=WANTED
            )
    return {name: svg.encode() for name, svg in files.items()}
