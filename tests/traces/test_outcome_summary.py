"""The figures of a log are those of its records, in whatever form it is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from steersman.traces.outcome_compaction import compact
from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord
from steersman.traces.outcome_segments import framed_segments
from steersman.traces.outcome_summary import summarise_log, summarise_records
from steersman.traces.schema import Status

GOOD = OutcomeRecord(
    "r",
    1.7e9,
    10,
    choice=0,
    policy="learned",
    policy_version="7",
    propensity=0.995,
    ttft_s=0.3,
    queued_s=0.1,
    ttft_p50_s=0.1,
    ttft_p90_s=0.15,
    tpot_s=0.02,
    e2e_s=1.0,
    state=np.ones((2, 33)),
)
RECORDS = [
    *(replace(GOOD, request_id=f"g{i}") for i in range(8)),
    replace(GOOD, request_id="x", propensity=0.005, explored=True, ttft_s=0.2, held_s=0.2),
    replace(GOOD, request_id="f", policy="p2c", propensity=0.5, fallback_reason="stale_snapshot"),
    replace(GOOD, request_id="b", status=Status.FAILED, error="connect", retries=1, affinity="stayed"),
    OutcomeRecord("n", 1.7e9, 10, status=Status.REJECTED, error="rate_limited"),
]


def test_figures() -> None:
    found = summarise_records(RECORDS)
    assert (found["records"], found["decisions"]) == (12, 11)
    assert found["status"] == {"ok": 10, "failed": 1, "rejected": 1}
    assert found["policy"] == {"learned": 10, "p2c": 1}
    assert found["fallback_reason"] == {"stale_snapshot": 1}
    assert found["error"] == {"connect": 1, "rate_limited": 1}
    assert found["affinity"] == {"stayed": 1}
    assert (found["held_back"], found["retried"]) == (1, 1)
    assert found["latency"]["ttft_s"]["p50"] == pytest.approx(0.3)
    assert found["latency"]["e2e_s"]["p99"] == pytest.approx(1.0)
    chance = found["propensity"]
    assert chance["known_share"] == 1.0
    assert chance["by_chance_share"] == 1.0
    assert chance["explored_share"] == pytest.approx(1 / 11)
    assert chance["least"] == 0.005
    predicted = found["predicted_ttft"]
    assert predicted["compared"] == 10
    assert predicted["within_p90_share"] == pytest.approx(0.1)
    assert predicted["median_log_error"] == pytest.approx(np.log(2.0))


def test_nothing_known_is_no_figure() -> None:
    found = summarise_records([])
    assert (found["records"], found["latency"]["ttft_s"], found["predicted_ttft"]) == (0, None, None)
    assert found["propensity"]["least"] is None


def test_frames_tables_and_damage(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path) as writer:
        for record in RECORDS:
            writer.append(record)
    before = summarise_log(tmp_path)
    (framed,) = framed_segments(tmp_path)
    data = bytearray(framed.read_bytes())
    data[data.index(b'"g3"')] ^= 1
    framed.write_bytes(data[:-5])
    damaged = summarise_log(tmp_path)
    assert damaged["damage"]["places"] == damaged["damage"]["torn_tails"] == 1
    framed.write_bytes(data[:-5])
    compact(tmp_path)
    after = summarise_log(tmp_path)
    assert after["segments"]["compacted"] == 1
    assert before["segments"]["framed"] == 1
    assert after["records"] == damaged["records"] == 10
    assert after["latency"] == damaged["latency"]
    assert after["damage"]["places"] == 2
