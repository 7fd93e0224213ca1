"""SQL sees all of a log once, whatever form it is in, and says in one line what is wrong."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.outcome_compaction import compact
from steersman.traces.outcome_log import (
    OutcomeLogWriter,
    OutcomeRecord,
    read_newest,
    read_outcomes,
    segments,
)
from steersman.traces.outcome_query import query
from steersman.traces.schema import Status


def _write(directory: Path, first: int, count: int = 5, text: str | None = None) -> None:
    with OutcomeLogWriter(directory) as writer:
        for i in range(first, first + count):
            record = OutcomeRecord(
                f"r{i}", float(i), i, policy="p2c", state=np.full((2, 3), float(i)), prompt_text=text
            )
            writer.append(record)


def test_compacted_and_framed_segments_are_one_table(tmp_path: Path) -> None:
    _write(tmp_path, 0)
    compact(tmp_path)
    _write(tmp_path, 5)
    before = {path.name for path in tmp_path.iterdir()}
    answer = query(tmp_path, "select policy, count(*) n, sum(state[2][3]) s from outcomes group by all")
    assert (answer.columns, answer.rows) == (("policy", "n", "s"), [("p2c", 10, 45.0)])
    assert {path.name for path in tmp_path.iterdir()} == before
    ids = query(tmp_path, "select request_id from outcomes order by input_tokens", most=3)
    assert (ids.rows, ids.cut) == ([("r0",), ("r1",), ("r2",)], True)
    one = query(segments(tmp_path)[1], "select min(input_tokens) from outcomes")
    assert one.rows == [(5,)]


def test_attempts_before_the_last_are_not_outcomes(tmp_path: Path) -> None:
    """Neither from frames nor from tables, nor where it is not asked for that field."""
    for form in ("frames", "table"):
        log = tmp_path / form
        with OutcomeLogWriter(log) as writer:
            for superseded in (True, False):
                writer.append(OutcomeRecord("r", 1.0, 5, status=Status.OK, superseded=superseded))
        if form == "table":
            compact(log)
        assert query(log, "select count(*) from outcomes").rows == [(1,)]
        assert query(log, "select superseded from attempts").rows == [(True,), (False,)]
        assert [r.superseded for r in read_outcomes(log, only={"status"})] == [False]
        assert len(list(read_outcomes(log, attempts=True))) == 2
        assert read_newest(log, 5, lambda record: record.superseded) == [False]


def test_text_is_in_a_view_of_its_own(tmp_path: Path) -> None:
    _write(tmp_path, 0, 1, text="the launch code")
    assert "launch" not in str(query(tmp_path, "select * from outcomes").rows)
    assert query(tmp_path, "select * from prompts").rows == [("r0", "the launch code")]


@pytest.mark.parametrize("sql", ["selct 1", "select nothing from outcomes", "", "select 1; drop"])
def test_a_wrong_query_is_one_line(tmp_path: Path, sql: str) -> None:
    _write(tmp_path, 0, 1)
    with pytest.raises(ConfigError, match=r"^the query is (wrong|empty)") as told:
        query(tmp_path, sql)
    assert "\n" not in str(told.value)


def test_no_log_and_a_damaged_table_are_one_line(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="has no outcome log segments"):
        query(tmp_path, "select 1")
    (tmp_path / "outcomes-1.parquet").write_bytes(b"PAR1 nonsense")
    with pytest.raises(TraceError, match="cannot be queried"):
        query(tmp_path, "select 1")
