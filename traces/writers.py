"""Writing traces in our own schema: CSV, JSON lines (both may be gzipped) or parquet, atomically."""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from steersman.traces.errors import ConfigError
from steersman.traces.readers.native import ALL_COLUMNS
from steersman.traces.schema import Request

PARQUET_ROWS = 8192


def write_trace(path: str | Path, requests: Iterable[Request]) -> int:
    """Write requests as they come; the file appears when it is complete.

    Args:
        path: ends in .csv, .jsonl, .csv.gz, .jsonl.gz or .parquet. An existing file is replaced.

    Returns:
        How many requests were written.

    Raises:
        ConfigError: another suffix, or the file cannot be written.
        TraceError: from `requests`, if they are read from a bad file; nothing is left behind.
    """
    path = Path(path)
    write = _writer(path)
    try:
        with _replacing(path) as file:
            return write(file, requests)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror or error})") from None


def check_suffix(path: str | Path) -> None:
    """Raise a ConfigError unless `write_trace` knows the suffix."""
    _writer(Path(path))


def _writer(path: Path) -> Callable[[BinaryIO, Iterable[Request]], int]:
    name = path.name.lower()
    for suffix, write in _WRITERS.items():
        if name.endswith(suffix):
            return write
    raise ConfigError(f"{path}: unknown suffix; end the name in one of {', '.join(_WRITERS)}")


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A temporary file beside `path` that takes its place if all goes well."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with partial.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def _write_jsonl(file: BinaryIO, requests: Iterable[Request]) -> int:
    count = 0
    for count, request in enumerate(requests, 1):  # noqa: B007 (counted even if there are none)
        file.write(orjson.dumps(request, option=orjson.OPT_APPEND_NEWLINE))
    return count


def _write_csv(file: BinaryIO, requests: Iterable[Request]) -> int:
    text = io.TextIOWrapper(file, encoding="utf-8", newline="", write_through=True)
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(ALL_COLUMNS)
    count = 0
    for count, request in enumerate(requests, 1):  # noqa: B007
        writer.writerow([_csv_value(getattr(request, column)) for column in ALL_COLUMNS])
    text.detach()  # leaves the file open
    return count


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return int(value) if isinstance(value, int) else value


def _gzipped(
    write: Callable[[BinaryIO, Iterable[Request]], int],
) -> Callable[[BinaryIO, Iterable[Request]], int]:
    def wrapped(file: BinaryIO, requests: Iterable[Request]) -> int:
        # A fixed time stamp: equal traces make equal files.
        with gzip.GzipFile(fileobj=file, mode="wb", mtime=0) as compressed:
            return write(cast(BinaryIO, compressed), requests)

    return wrapped


def _write_parquet(file: BinaryIO, requests: Iterable[Request]) -> int:
    import pyarrow as pa
    import pyarrow.parquet as pq

    types = {
        "request_id": pa.string(),
        "arrival_s": pa.float64(),
        "input_tokens": pa.int64(),
        "output_tokens": pa.int64(),
        "max_tokens": pa.int64(),
        "model": pa.dictionary(pa.int32(), pa.string()),
        "tenant": pa.dictionary(pa.int32(), pa.string()),
        "priority": pa.int8(),
        "stream": pa.bool_(),
        "tools": pa.int32(),
        "tool_choice": pa.int8(),
        "has_code": pa.bool_(),
        "question_type": pa.dictionary(pa.int32(), pa.string()),
        "question_bytes": pa.int64(),
        "asked_tokens": pa.int64(),
        "wording": pa.float64(),
        "turns": pa.int32(),
        "lora_adapter": pa.dictionary(pa.int32(), pa.string()),
        "session_id": pa.string(),
        "parent_id": pa.string(),
        "think_time_s": pa.float64(),
        "block_hashes": pa.list_(pa.int64()),
        "block_tokens": pa.int32(),
        "hour_of_day": pa.float64(),
        "called_tool": pa.bool_(),
    }
    schema = pa.schema([(column, types[column]) for column in ALL_COLUMNS])
    count = 0
    with pq.ParquetWriter(file, schema, compression="zstd") as writer:
        for rows in _batches(requests):
            columns = [
                pa.array([_parquet_value(getattr(row, column)) for row in rows], types[column])
                for column in ALL_COLUMNS
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=schema))
            count += len(rows)
    return count


def _parquet_value(value: Any) -> Any:
    # Enumerations as what they stand for.
    if isinstance(value, str):
        return str(value)
    return int(value) if type(value) not in (bool, int) and isinstance(value, int) else value


def _batches(requests: Iterable[Request]) -> Iterator[list[Request]]:
    batch: list[Request] = []
    for request in requests:
        batch.append(request)
        if len(batch) == PARQUET_ROWS:
            yield batch
            batch = []
    if batch:
        yield batch


_WRITERS: dict[str, Callable[[BinaryIO, Iterable[Request]], int]] = {
    ".csv": _write_csv,
    ".jsonl": _write_jsonl,
    ".csv.gz": _gzipped(_write_csv),
    ".jsonl.gz": _gzipped(_write_jsonl),
    ".parquet": _write_parquet,
}
