"""Bad files of every kind: one clear line that names the place and the fix."""

from __future__ import annotations

import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from steersman.traces.errors import TraceError
from steersman.traces.readers import load_trace

DATA = Path(__file__).resolve().parents[2] / "data"
AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n"


def _error(path: Path | str, **options: bool) -> str:
    with pytest.raises(TraceError) as caught:
        load_trace(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "is empty; give a file with at least one request"),
        ("\n\n", "is empty"),
        (AZURE, "has no requests"),
        ("a,b\n1,2\n", "has columns a, b, which no known format has"),
        (
            "TIMESTAMP,ContextTokens\n",
            "lacks the column GeneratedTokens of the format 'azure'; it has TIMESTAMP",
        ),
        ("t_s,input_tokens\n0,1\n", "lacks the column output_tokens of the format 'plain'"),
        (
            AZURE + "2023-11-16 18:15:46,374\n",
            "row 2: has 2 values, the header 3; is the file truncated?",
        ),
        (AZURE + "yesterday,374,1\n", "row 2: 'TIMESTAMP' = 'yesterday' is not a time like 2023-"),
        (AZURE + "2023-11-16 18:15:46,many,1\n", "row 2: 'ContextTokens' = 'many' is not a number"),
        (AZURE + "2023-11-16 18:15:46,,1\n", "row 2: 'ContextTokens' is empty"),
        (AZURE + "2023-11-16 18:15:46,nan,1\n", "row 2: 'ContextTokens' = 'nan' is not a finite number"),
        (AZURE + "2023-11-16 18:15:46,1.5,1\n", "row 2: 'ContextTokens' = '1.5' is not a whole number"),
        (AZURE + "2023-11-16 18:15:46,-3,1\n", "row 2: 'ContextTokens' = -3 is outside 0 to 10000000"),
        (AZURE + "2023-11-16 18:15:46,1,20000000\n", "row 2: 'GeneratedTokens' = 20000000 is outside"),
        (
            AZURE + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,1,1\n",
            "row 3: arrives at -1 s, before the request above it (0 s); sort the file by time, or "
            "read it with --sort",
        ),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": []\n',
            "row 1: is not valid JSON",
        ),
        ("[1, 2]\n", "row 1: is a JSON list; each line must be one object {...}"),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1}\n'
            '{"timestamp": 1, "input_length": 1}\n',
            "row 2: lacks 'output_length'; it has timestamp, input_length",
        ),
        (
            '{"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1.5]}\n',
            "row 1: 'hash_ids' holds 1.5; block hashes are integers",
        ),
        (
            '{"timestamp": 0, "input_length": true, "output_length": 1}\n',
            "row 1: 'input_length' = True is not a finite number",
        ),
        ("arrival_s,input_tokens,colour\n0,1,red\n", "has unknown columns colour; known are request_id"),
        ("arrival_s,input_tokens,priority\n0,1,9\n", "row 2: 'priority' = 9 is outside 0 to 3"),
        (
            "arrival_s,input_tokens,stream\n0,1,perhaps\n",
            "row 2: 'stream' = 'perhaps' is neither true nor false",
        ),
        (
            "arrival_s,input_tokens,question_type\n0,1,odd\n",
            "row 2: 'question_type' = 'odd' is none of unknown",
        ),
        ("arrival_s,input_tokens,hour_of_day\n0,1,24\n", "row 2: 'hour_of_day' = 24 is outside 0 to 24"),
        (
            "arrival_s,input_tokens,block_hashes\n0,1,1 -2\n",
            "row 2: 'block_hashes' = '1 -2' is not a list",
        ),
        ("arrival_s,input_tokens\n-1,1\n", "row 2: 'arrival_s' = -1 is negative"),
        ("arrival_s,input_tokens,request_id\n0,1,x\n0,1,x\n", "request id 'x' appears twice"),
    ],
)
def test_bad_text(text: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    path.write_text(text)
    message = _error(path)
    assert expected in message
    assert str(path) in message or "'trace'" in message


def _truncated_gzip(path: Path) -> None:
    whole = gzip.compress((DATA / "azure2023_conv_excerpt.csv").read_bytes())
    path.write_bytes(whole[: len(whole) // 2])


def _damaged_gzip(path: Path) -> None:
    whole = bytearray(gzip.compress((DATA / "azure2023_conv_excerpt.csv").read_bytes()))
    whole[40:48] = b"\xff" * 8
    path.write_bytes(whole)


def _truncated_parquet(path: Path) -> None:
    whole = (DATA / "servegen_deepseek-r1_excerpt.parquet").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])


def _damaged_parquet(path: Path) -> None:
    whole = bytearray((DATA / "servegen_deepseek-r1_excerpt.parquet").read_bytes())
    whole[4:4000] = b"\x55" * 3996
    path.write_bytes(whole)


@pytest.mark.parametrize(
    ("write", "expected"),
    [
        (_truncated_gzip, "the compressed file is truncated; copy it again"),
        (_damaged_gzip, "the compressed file is damaged; copy it again"),
        (_truncated_parquet, "is not a readable parquet file, perhaps truncated"),
        (_damaged_parquet, "is not a readable parquet file, perhaps truncated"),
        (
            lambda path: path.write_bytes(bytes(range(256)) * 40),
            "neither CSV, JSON lines nor parquet but binary",
        ),
        (lambda path: path.write_bytes((AZURE + "é").encode("latin-1")), "row 2: is not UTF-8 text"),
        (lambda path: path.write_bytes(AZURE.encode("utf-16")), "binary"),
        (lambda path: path.write_bytes(b"\xff" * 100), "row 1: is not UTF-8 text"),
        (
            lambda path: path.write_bytes(
                gzip.compress((DATA / "servegen_deepseek-r1_excerpt.parquet").read_bytes())
            ),
            "is a gzipped parquet file; decompress it first",
        ),
    ],
)
def test_bad_bytes(write: Callable[[Path], object], expected: str, tmp_path: Path) -> None:
    path = tmp_path / "trace"
    write(path)
    assert expected in _error(path)


def test_missing_files_and_names() -> None:
    assert "did you mean the bundled trace 'azure-chat'?" in _error("azure-cht")
    assert "no such file; give a path, or the name of a bundled trace" in _error("/nowhere/trace.csv")


def test_pipes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "is not a regular file; save the trace to a file first" in _error(tmp_path / "pipe")


def test_unsorted_files_can_be_sorted(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + "2023-11-16 18:15:46,1,1\n2023-11-16 18:15:45,2,1\n")
    trace = load_trace(path, sort=True)
    assert trace.arrival_s.tolist() == [0.0, 1.0]
    assert trace.input_tokens.tolist() == [2, 1]


def test_error_carries_its_place(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(AZURE + "2023-11-16 18:15:46,x,1\n")
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    assert (caught.value.path, caught.value.row) == (str(path), 2)


def test_windows_files_are_fine(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(("\ufeff" + AZURE + "2023-11-16 18:15:46,1,1\n").replace("\n", "\r\n").encode())
    assert len(load_trace(path)) == 1
