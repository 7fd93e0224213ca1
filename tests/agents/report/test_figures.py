"""Figures are SVG with their words as text."""

from __future__ import annotations

from steersman.agents.report.figures import error_bars


def test_error_bars_name_every_run_and_series() -> None:
    svg = error_bars(["one", "two"], {"p50": [1.0, -2.0], "p99": [0.5, 3.0]}, label="error (%)")
    assert svg.startswith("<svg")
    assert all(word in svg for word in ("one", "two", "p50", "p99", "error (%)"))
