from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from tests.e2e.conftest import MODEL, Backends, Router
from tests.support.processes import run_cli

SLICE = ("azure-chat", "--limit", "8", "--rate", "8")


def test_the_bundled_trace_through_the_router(
    router: Router, backends: Backends, tmp_path: Path
) -> None:
    out = tmp_path / "requests.parquet"
    ended = run_cli("replay", *SLICE, "--url", router.url, "--json", "--out", str(out))
    assert ended.returncode == 0, ended.stderr
    summary = json.loads(ended.stdout)
    assert summary["statuses"] == {"ok": 8}
    assert summary["model"] == MODEL
    assert set(summary["share"]) <= set(backends.ids)
    assert sum(summary["share"].values()) == pytest.approx(1.0)
    assert 0.0 < summary["ttft_s"]["p50"] <= summary["ttft_s"]["p99"]
    rows = pq.read_table(out).to_pylist()
    assert len(rows) == 8
    assert all(row["output_tokens"] == row["wanted_output_tokens"] for row in rows)
    assert {row["replica"] for row in rows} == set(summary["share"])


def test_a_table_for_people(backends: Backends) -> None:
    ended = run_cli("replay", *SLICE, "--url", f"{backends.urls[0]}/v1", "--scenario", "tiny")
    assert ended.returncode == 0, ended.stderr
    for text in ("TTFT", "TPOT", "E2E", "p99", "8 ok", "objectives met", "tokens/s"):
        assert text in ended.stdout


def test_a_model_that_is_not_served(backends: Backends) -> None:
    ended = run_cli("replay", *SLICE, "--url", backends.urls[0], "--model", "gpt-imaginary")
    assert ended.returncode == 2
    assert f"no model 'gpt-imaginary'; it lists: {MODEL}" in ended.stderr
