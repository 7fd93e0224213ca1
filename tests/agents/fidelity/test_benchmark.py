"""The benchmark's own part: figures from comparisons, rows as documented, drawings."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from steersman.agents.fidelity.comparison import Comparison

SCRIPT = Path(__file__).resolve().parents[3] / "benchmarks" / "fidelity.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("fidelity_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _compared(reference: str, run: str, metric: str, ours: float, group: str) -> Comparison:
    return Comparison(reference, run, metric, 1.0, ours, group=group)


def test_a_figure_is_the_median_over_the_runs_of_its_group(script: ModuleType) -> None:
    found = [
        _compared("vidur", f"run{i}", "e2e_p50", 1.0 + e, "predicted") for i, e in enumerate((0.1, -0.3))
    ]
    found.append(_compared("vidur", "fit", "e2e_p50", 9.0, "fitted"))
    row = script._figure(found, "vidur.e2e_p50_error", "vidur", "e2e_p50", "predicted")
    assert set(row) == {"name", "value", "lo", "hi", "unit", "note"}
    assert row["value"] == pytest.approx(0.2)
    assert row["lo"] == pytest.approx(0.1)
    assert row["hi"] == pytest.approx(0.3)
    assert "worst run1 -30.0%" in row["note"]


def test_drawings_are_made_from_the_comparisons(script: ModuleType, tmp_path: Path) -> None:
    found = [
        _compared(reference, f"{reference}-run", metric, 1.1, group)
        for reference in ("vidur", "vidur_engine", "real_vllm")
        for metric in ("ttft_p50", "e2e_p50", "e2e_p99")
        for group in ("fitted", "predicted")
    ]
    found += [
        _compared(
            "measured", f"h200-tp4-x 1024/1024 x{clients}", metric, 1.0 + clients / 10, "predicted"
        )
        for metric in ("ttft_mean", "tpot_mean")
        for clients in (4, 8)
    ]
    script._draw(found, tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "curves_tpot_mean.svg",
        "curves_ttft_mean.svg",
        "real_vllm.svg",
        "vidur.svg",
        "vidur_engine.svg",
    ]
