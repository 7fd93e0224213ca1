from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import orjson
import pyarrow.parquet as pq
import pytest

from steersman.serving.replay_result import ReplayResult, check_output_path
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Status

NAN = float("nan")


def result() -> ReplayResult:
    """Four requests: good, too slow to begin, failed after a token, refused."""
    return ReplayResult(
        name="t",
        url="http://x",
        model="m",
        wall_s=2.0,
        request_id=("a", "b", "c", "d"),
        scheduled_s=np.array([0.0, 0.5, 1.0, 1.5]),
        lateness_s=np.array([0.0, 0.001, 0.0, 0.002]),
        ttft_s=np.array([0.2, 1.4, 0.3, NAN]),
        tpot_s=np.array([0.02, 0.03, NAN, NAN]),
        e2e_s=np.array([1.0, 2.0, NAN, NAN]),
        input_tokens=np.array([10, 20, 30, 40]),
        output_tokens=np.array([41, 21, 3, 0]),
        wanted_output_tokens=np.array([41, 21, 50, 60]),
        ttft_slo_s=np.full(4, 1.0),
        tpot_slo_s=np.full(4, 0.05),
        status=(Status.OK, Status.OK, Status.FAILED, Status.REJECTED),
        http_status=np.array([200, 200, 200, 429]),
        began=np.array([True, True, True, False]),
        replica=("r0", "r1", "r1", ""),
        fallback=("", "stale", "", ""),
        error=("", "", "the stream broke off", "429: slow down"),
    )


def test_the_summary_counts_and_compares() -> None:
    summary = result().summary()
    assert summary["requests"] == 4
    assert summary["statuses"] == {"ok": 2, "failed": 1, "rejected": 1}
    assert summary["failed_before_first_token"] == 1
    assert summary["slo_attainment"] == 0.25
    assert summary["goodput_rps"] == 0.5
    assert summary["ttft_s"]["mean"] == pytest.approx(0.8)
    assert summary["tpot_s"]["p50"] == pytest.approx(0.025)
    assert summary["share"] == {"r0": pytest.approx(1 / 3), "r1": pytest.approx(2 / 3)}
    assert summary["fallbacks"] == {"stale": 1}
    assert summary["errors"] == {"the stream broke off": 1, "429: slow down": 1}
    assert summary["output_tokens_per_s"] == 32.5
    assert summary["client_kept_up"] is True
    assert orjson.loads(orjson.dumps(summary)) == summary


def test_a_client_that_fell_behind_says_so() -> None:
    late = replace(result(), lateness_s=np.array([0.0, 0.0, 0.2, 0.3]))
    assert late.summary()["client_kept_up"] is False


def test_objectives_of_answers_that_were_not_streamed() -> None:
    whole = replace(result(), tpot_s=np.full(4, NAN))
    assert whole.slo_met.tolist() == [True, False, False, False]


def test_nothing_went_well() -> None:
    summary = replace(result(), status=(Status.FAILED,) * 4).summary()
    assert summary["ttft_s"] == dict.fromkeys(("mean", "p50", "p90", "p99"))
    assert summary["slo_attainment"] == 0.0


def test_an_empty_replay() -> None:
    empty = {
        field.name: value[:0]
        for field in fields(ReplayResult)
        if not isinstance(value := getattr(result(), field.name), str | float)
    }
    summary = replace(result(), wall_s=0.0, **empty).summary()
    assert summary["requests"] == 0
    assert summary["goodput_rps"] == 0.0


def test_tables_are_saved_as_parquet_and_as_lines(tmp_path: Path) -> None:
    result().save(tmp_path / "t.parquet")
    result().save(tmp_path / "t.jsonl")
    from_parquet = pq.read_table(tmp_path / "t.parquet").to_pylist()
    from_lines = [orjson.loads(line) for line in (tmp_path / "t.jsonl").read_bytes().splitlines()]
    assert [row["request_id"] for row in from_parquet] == ["a", "b", "c", "d"]
    assert [row["slo_met"] for row in from_lines] == [True, False, False, False]
    assert from_lines[3]["ttft_s"] is None
    assert [row["status"] for row in from_parquet] == [row["status"] for row in from_lines]
    assert set(from_parquet[0]) == set(from_lines[0])


def test_where_a_table_cannot_go_is_told_before_the_replay(tmp_path: Path) -> None:
    assert check_output_path(tmp_path / "a.parquet") == tmp_path / "a.parquet"
    with pytest.raises(ConfigError, match=r"cannot save as '\.csv'"):
        check_output_path(tmp_path / "a.csv")
    with pytest.raises(ConfigError, match="no folder"):
        check_output_path(tmp_path / "none" / "a.jsonl")
