"""From a file to rows: CSV, JSON lines or parquet, gzipped or not, with the place of each row.

A `Source` yields one mapping per row and knows nothing of what the columns mean; the format modules
beside this one know nothing of files. Rows stream: text line by line, parquet in batches.
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO, cast

import orjson

from steersman.traces.errors import TraceError

MAX_LINE_BYTES = 64 * 2**20
"""A longer line is no trace but rubbish without line ends."""
PARQUET_BATCH_ROWS = 8192

Row = Mapping[str, Any]


class Container(StrEnum):
    """How a file holds its rows."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


@dataclass(frozen=True, slots=True)
class Source:
    """A trace file whose container and columns are known."""

    path: Path
    container: Container
    columns: tuple[str, ...]
    """Header of a CSV, schema of a parquet file, keys of the first JSON object."""

    def rows(self) -> Iterator[tuple[int, Row]]:
        """(place, row). The place is the line for text (a header is line 1), the row from 1 for parquet.

        Raises:
            TraceError: truncated, not UTF-8, not JSON, or a row with too many or too few values.
        """
        if self.container is Container.PARQUET:
            return _parquet_rows(self.path)
        lines = text_lines(self.path)
        return (
            _csv_rows(self.path, lines)
            if self.container is Container.CSV
            else _json_rows(self.path, lines)
        )


def open_source(path: Path) -> Source:
    """Find out container and columns from the content; the file's name does not matter.

    Raises:
        TraceError: missing, empty, or neither CSV, JSON lines nor parquet.
    """
    head = read_head(path)
    if head[:4] == b"PAR1":
        if _is_gzipped(path):
            raise TraceError("is a gzipped parquet file; decompress it first", path=str(path))
        return Source(path, Container.PARQUET, _parquet_columns(path))
    if b"\0" in head:
        raise TraceError("is neither CSV, JSON lines nor parquet but binary", path=str(path))
    first = next((line for _, line in text_lines(path) if line.strip()), "")
    if not first:
        raise TraceError("is empty; give a file with at least one request", path=str(path))
    if first.lstrip().startswith(("{", "[")):
        _, row = next(_json_rows(path, text_lines(path)))
        return Source(path, Container.JSONL, tuple(row))
    return Source(path, Container.CSV, tuple(name.strip() for name in next(csv.reader([first]))))


def read_head(path: Path, size: int = 4096) -> bytes:
    """The first bytes, decompressed."""
    with _reading(path), _open(path) as file:
        return file.read(size)


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line number from 1, line) of a UTF-8 text file, gzipped or not."""
    with _reading(path), _open(path) as file:
        number = 0
        while raw := file.readline(MAX_LINE_BYTES):
            number += 1
            if len(raw) == MAX_LINE_BYTES and not raw.endswith(b"\n"):
                raise TraceError(
                    "has a line of over 64 MiB; this is no trace", path=str(path), row=number
                )
            try:
                yield number, raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                message = "is not UTF-8 text; convert the file to UTF-8"
                raise TraceError(message, path=str(path), row=number) from None


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn failures to read `path` into a TraceError of one line."""
    try:
        yield
    except FileNotFoundError:
        raise TraceError("no such file", path=str(path)) from None
    except EOFError:
        raise TraceError("the compressed file is truncated; copy it again", path=str(path)) from None
    except (gzip.BadGzipFile, zlib.error):
        raise TraceError("the compressed file is damaged; copy it again", path=str(path)) from None
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})", path=str(path)) from None


def _is_gzipped(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _open(path: Path) -> BinaryIO:
    return cast(BinaryIO, gzip.open(path, "rb")) if _is_gzipped(path) else path.open("rb")


def _csv_rows(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(line for _, line in lines)
    columns: list[str] | None = None
    try:
        for values in reader:
            if not values:
                continue
            if columns is None:
                columns = [name.strip() for name in values]
            elif len(values) != len(columns):
                message = f"has {len(values)} values, the header {len(columns)}; is the file truncated?"
                raise TraceError(message, path=str(path), row=reader.line_num)
            else:
                yield reader.line_num, dict(zip(columns, values, strict=True))
    except csv.Error as error:
        raise TraceError(f"is not valid CSV ({error})", path=str(path), row=reader.line_num) from None


def _json_rows(path: Path, lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Row]]:
    for number, line in lines:
        if not line.strip():
            continue
        try:
            row = orjson.loads(line)
        except orjson.JSONDecodeError as error:
            message = f"is not valid JSON ({error.msg}); is the file truncated?"
            raise TraceError(message, path=str(path), row=number) from None
        if not isinstance(row, dict):
            message = f"is a JSON {type(row).__name__}; each line must be one object {{...}}"
            raise TraceError(message, path=str(path), row=number)
        yield number, row


def _parquet_columns(path: Path) -> tuple[str, ...]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return tuple(pq.read_schema(path).names)
    except (pa.ArrowException, OSError) as error:
        raise _parquet_error(path, error) from None


def _parquet_rows(path: Path) -> Iterator[tuple[int, Row]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            place = 0
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, use_threads=False):
                names = batch.schema.names
                columns = [column.to_pylist() for column in batch.columns]
                for values in zip(*columns, strict=True):
                    place += 1
                    yield place, dict(zip(names, values, strict=True))
    except (pa.ArrowException, OSError) as error:
        raise _parquet_error(path, error) from None


def _parquet_error(path: Path, error: Exception) -> TraceError:
    reason = str(error).split("\n")[0].split(". ")[0]
    return TraceError(f"is not a readable parquet file, perhaps truncated ({reason})", path=str(path))
