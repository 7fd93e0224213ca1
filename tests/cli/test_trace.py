"""`steersman trace`: what it prints, what it writes, and how it fails."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from steersman.cli.trace import app
from steersman.traces.errors import ConfigError, SteersmanError, TraceError
from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord
from steersman.traces.readers import load_trace

DATA = Path(__file__).resolve().parents[1] / "data"


def _run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], catch_exceptions=True)


def _error(*arguments: str | Path) -> str:
    result = _run(*arguments)
    assert isinstance(result.exception, SteersmanError), result.output
    message = str(result.exception)
    assert "\n" not in message
    return message


def test_inspect_shows_the_bundled_trace() -> None:
    result = _run("inspect", "azure-chat")
    assert result.exit_code == 0
    for word in ("azure-chat (plain)", "19,366", "5.53 requests/s", "input tokens", "p99"):
        assert word in result.stdout


def test_inspect_json_is_one_document() -> None:
    result = _run("inspect", DATA / "mooncake_conversation_excerpt.jsonl", "--json", "--model", "m")
    summary = json.loads(result.stdout)
    assert summary["format"] == "mooncake"
    assert summary["requests"] == 400
    assert summary["sessions"] == 363
    assert summary["models"] == {"m": 400}
    assert summary["prefix_share"] == pytest.approx(0.1367, abs=1e-3)


@pytest.mark.parametrize(
    "name", ["agent_sessions_excerpt.jsonl", "servegen_deepseek-r1_excerpt.parquet"]
)
def test_inspect_shows_sessions_and_tenants(name: str) -> None:
    result = _run("inspect", DATA / name)
    assert result.exit_code == 0
    assert "tenants" in result.stdout


def test_inspect_reads_an_outcome_log(tmp_path: Path) -> None:
    with OutcomeLogWriter(tmp_path / "log") as writer:
        for i in range(5):
            writer.append(OutcomeRecord(f"r{i}", 1.7e9 + i, 10, e2e_s=1.0))
    result = _run("inspect", tmp_path / "log", "--json")
    summary = json.loads(result.stdout)
    assert (summary["format"], summary["requests"], summary["output_unknown"]) == ("outcome-log", 5, 5)
    assert "output unknown" in _run("inspect", tmp_path / "log").stdout


@pytest.mark.parametrize("suffix", [".csv", ".jsonl.gz", ".parquet"])
def test_convert_loses_nothing(suffix: str, tmp_path: Path) -> None:
    source, target = DATA / "agent_sessions_excerpt.jsonl", tmp_path / f"out{suffix}"
    result = _run("convert", source, target, "--json")
    assert json.loads(result.stdout) == {"path": str(target), "format": "agent-sessions", "requests": 86}
    assert load_trace(target).fingerprint() == load_trace(source).fingerprint()


def test_convert_slices_and_scales(tmp_path: Path) -> None:
    target = tmp_path / "out.csv"
    result = _run(
        *(
            "convert",
            "azure-chat",
            target,
            "--start",
            "100",
            "--end",
            "300",
            "--limit",
            "500",
            "--rate",
            "20",
        )
    )
    assert result.exit_code == 0
    assert "500 requests" in result.stdout
    trace = load_trace(target)
    expected = load_trace("azure-chat").between(100, 300)
    assert len(trace) == 500
    assert trace.rate_rps == pytest.approx(20.0)
    assert trace.input_tokens.tolist() == expected.input_tokens[:500].tolist()


def test_convert_turns_orphans_into_roots(tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    assert _run("convert", DATA / "agent_sessions_excerpt.jsonl", target, "--start", "80").exit_code == 0
    cut = load_trace(DATA / "agent_sessions_excerpt.jsonl").between(80, 1e9)
    made = load_trace(target)
    assert made.parent.tolist() == cut.parent.tolist()
    assert '"parent_id":null' in target.read_text().splitlines()[0]


def test_convert_sorts_on_demand(tmp_path: Path) -> None:
    source = tmp_path / "in.csv"
    source.write_text("arrival_s,input_tokens\n2,20\n1,10\n")
    assert "row 3: arrives at 1 s" in _error("convert", source, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    assert _run("convert", source, tmp_path / "out.csv", "--sort").exit_code == 0
    assert load_trace(tmp_path / "out.csv").input_tokens.tolist() == [10, 20]


def test_bad_input_is_one_clear_line(tmp_path: Path) -> None:
    bad = tmp_path / "bad.csv"
    bad.write_text("when,how many\n1,2\n")
    out = tmp_path / "out.csv"
    assert "has columns when, how many, which no known format has" in _error("inspect", bad)
    assert "no such file" in _error("inspect", tmp_path / "nothing.csv")
    assert "unknown suffix" in _error("convert", "azure-chat", tmp_path / "out.txt")
    assert "--rate = 0 must be above 0" in _error("convert", "azure-chat", out, "--rate", "0")
    assert "--end = nan must be after" in _error("convert", "azure-chat", out, "--end", "nan")
    assert "--end = 1 must be after --start = 2" in _error(
        *("convert", "azure-chat", out, "--start", "2", "--end", "1")
    )
    assert "no requests between" in _error("convert", "azure-chat", out, "--start", "1e6")
    assert "at least two requests" in _error(
        *("convert", "azure-chat", out, "--start", "1e6", "--rate", "1")
    )
    out.write_text("precious")
    assert "exists already" in _error("convert", "azure-chat", out)
    assert out.read_text() == "precious"
    assert _run("convert", "azure-chat", out, "--overwrite", "--limit", "5").exit_code == 0


def test_errors_are_of_the_right_kind(tmp_path: Path) -> None:
    assert isinstance(_run("inspect", tmp_path).exception, TraceError)
    assert isinstance(_run("convert", "azure-chat", tmp_path / "x.y").exception, ConfigError)
