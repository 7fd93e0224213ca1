"""`steersman trace compact|query|inspect` on an outcome log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord
from tests.cli.test_trace import _run
from tests.support.commands import mistake


@pytest.fixture
def log(tmp_path: Path) -> Path:
    with OutcomeLogWriter(tmp_path / "log") as writer:
        for i in range(5):
            writer.append(OutcomeRecord(f"r{i}", 1.7e9 + i, 10, policy="p2c", e2e_s=1.0, choice=0))
    return tmp_path / "log"


def test_compact_tells_what_it_did(log: Path) -> None:
    assert "1 segments with 5 records compacted" in _run("compact", log).stdout
    done = json.loads(_run("compact", log, "--json", "--total-bytes", "1000000").stdout)
    assert (done["segments"], done["records"], done["busy"]) == (0, 0, False)


def test_query_prints_a_table_or_lines_of_json(log: Path) -> None:
    sql = "select request_id, ttft_s, e2e_s from outcomes order by request_id"
    shown = _run("query", log, sql, "--most", "2").stdout
    assert "r1" in shown
    assert "r2" not in shown
    lines = [json.loads(line) for line in _run("query", log, sql, "--json").stdout.splitlines()]
    assert [line["request_id"] for line in lines] == [f"r{i}" for i in range(5)]
    assert lines[0] == {"request_id": "r0", "ttft_s": "nan", "e2e_s": 1.0}


def test_inspect_tells_what_a_log_knows(log: Path) -> None:
    shown = _run("inspect", log).stdout
    for words in ("as an outcome log", "p2c 5", "0 compacted, 1 in frames", "0 places"):
        assert words in shown
    summary = json.loads(_run("inspect", log, "--json").stdout)
    assert summary["requests"] == summary["log"]["records"] == 5


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compact", "nowhere"), "has no outcome log segments"),
        (("query", "nowhere", "select 1"), "has no outcome log segments"),
        (("query", "LOG", "select x from outcomes"), 'Referenced column "x" not found'),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...],
    words: str,
    log: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = tuple(str(log) if each == "LOG" else each for each in arguments)
    assert words in mistake(("trace", *given), monkeypatch, capsys)
