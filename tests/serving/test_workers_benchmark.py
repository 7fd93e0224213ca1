"""What the benchmark of several workers makes of its runs."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def test_ratios_are_of_rounds_and_the_machine_bounds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [str(BENCHMARKS), *sys.path])
    workers = importlib.import_module("workers")
    alone = [workers.Run(500.0, 1000.0, 500.0), workers.Run(250.0, 2000.0, 1000.0)]
    several = [workers.Run(900.0, 1100.0, 900.0), workers.Run(500.0, 2200.0, 1800.0)]
    rows = {row["name"]: row["value"] for row in workers.figures({1: alone, 3: several}, cores=4)}
    assert rows["req_per_s.workers_1"] == 375.0
    assert rows["req_per_s.workers_3"] == 700.0
    assert rows["req_per_s.ratio"] == pytest.approx(1.9)
    assert rows["cpu_us.ratio"] == pytest.approx(1.1)
    assert rows["req_per_s.possible_ratio"] == pytest.approx(4.0)
