"""The whole loop once, in short: the story is told to its end, and every figure is there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support.processes import run_cli

FIGURES = {
    "drift.detected_after_requests",
    "p99_ttft_ratio.after_promotion",
    "p99_ttft_ratio.in_canary",
    "bad_challenger.requests_harmed_fraction",
    "rollback.seconds",
    "log.cpu_fraction",
    "ope.dr_error_known_case",
}


@pytest.mark.timeout(900)
def test_a_short_rehearsal_goes_all_the_way(tmp_path: Path) -> None:
    out = tmp_path / "rehearsal"
    done = run_cli("rehearsal", "--quick", "--out", str(out), "--json", timeout_s=900)
    assert done.returncode == 0, done.stderr[-2000:]
    rows = {row["name"]: row for row in json.loads(done.stdout)}
    assert set(rows) == FIGURES
    assert json.loads((out / "rehearsal.json").read_text()) == json.loads(done.stdout)
    values = {name: row["value"] for name, row in rows.items()}
    assert values["p99_ttft_ratio.after_promotion"] > 0.0
    assert 0.0 <= values["bad_challenger.requests_harmed_fraction"] <= 1.0
    assert 0.0 < values["rollback.seconds"] < 60.0
    assert values["ope.dr_error_known_case"] < 0.01
    page = (out / "rehearsal.html").read_text()
    for told in ("weighted-least-requests", "sign-error", "retraining", "rollback"):
        assert told in page
