"""Figures of calibration are SVG files that say what they show."""

from __future__ import annotations

from xml.etree import ElementTree

import numpy as np

from steersman.agents.fit.calibration import calibration
from steersman.agents.report.calibration import calibration_files


def test_every_quantity_gets_its_figures() -> None:
    p50 = np.random.default_rng(0).lognormal(size=300)
    found = calibration("ttft", "s", p50, 2.0 * p50, 1.2 * p50)
    files = calibration_files([found], {"ttft": {"40%": 0.91, "95%": 0.88}, "tpot": {}})
    assert set(files) == {"ttft-calibration.svg", "ttft-coverage.svg", "ttft-coverage-by-load.svg"}
    for svg in files.values():
        assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert b"predicted p50 of ttft, s" in files["ttft-calibration.svg"]
    assert b"95%" in files["ttft-coverage-by-load.svg"]
