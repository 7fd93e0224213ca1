"""What is written is read back equal, in every container, and never half."""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given

from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.readers import find_trace, load_trace, open_trace
from steersman.traces.schema import Request
from steersman.traces.writers import write_trace
from tests.traces.strategies import requests

SUFFIXES = (".csv", ".jsonl", ".csv.gz", ".jsonl.gz", ".parquet")


@pytest.mark.parametrize("suffix", SUFFIXES)
@given(given_requests=requests().filter(bool))
def test_round_trip(given_requests: list[Request], suffix: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"trace{suffix}"
        assert write_trace(path, given_requests) == len(given_requests)
        assert find_trace(path).format == "steersman"
        assert list(open_trace(path)) == given_requests


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_real_traces_keep_their_fingerprint(suffix: str, tmp_path: Path) -> None:
    data = Path(__file__).resolve().parents[1] / "data"
    trace = load_trace(data / "mooncake_conversation_excerpt.jsonl", model="m")
    path = tmp_path / f"trace{suffix}"
    write_trace(path, trace.requests())
    assert load_trace(path).fingerprint() == trace.fingerprint()
    first = path.read_bytes()
    write_trace(path, trace.requests())
    assert path.read_bytes() == first  # equal traces make equal files
    assert [entry.name for entry in tmp_path.iterdir()] == [path.name]


def test_many_rows(tmp_path: Path) -> None:
    trace = load_trace("azure-chat", limit=9000)
    write_trace(tmp_path / "trace.parquet", trace.requests())
    assert load_trace(tmp_path / "trace.parquet").fingerprint() == trace.fingerprint()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_failure_leaves_the_old_file(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"trace{suffix}"
    path.write_text("old")

    def failing() -> Iterator[Request]:
        yield Request("a", 0.0, 1)
        raise TraceError("breaks off", path="in", row=2)

    with pytest.raises(TraceError, match="in: row 2: breaks off"):
        write_trace(path, failing())
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_wrong_places_are_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"unknown suffix; end the name in one of .csv, .jsonl"):
        write_trace(tmp_path / "trace.xlsx", [])
    with pytest.raises(ConfigError, match=r"cannot be written \(No such file or directory\)"):
        write_trace(tmp_path / "nowhere" / "trace.csv", [])


def test_every_field_of_a_request_is_written(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace.csv", [])
    header = (tmp_path / "trace.csv").read_text().strip().split(",")
    assert header == [field.name for field in dataclasses.fields(Request)]
