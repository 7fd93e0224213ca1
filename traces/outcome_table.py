"""Outcome records as a Parquet table: a column per field, arrays as lists, zstd.

The schema follows from `OutcomeRecord`. A record that does not fit into it (a number beyond 64 bits, a
state that is no matrix: nothing that our router writes) is kept as it was, in the column `raw`; the
other columns have its defaults then. Arrow is imported when needed: the router never does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import orjson
from numpy.typing import NDArray

from steersman.traces.framing import Damage
from steersman.traces.outcome_record import OutcomeRecord, typed

if TYPE_CHECKING:
    import pyarrow as pa

MARK = b"steersman.outcomes"
"""Key of the schema's metadata that tells an outcome table from any other; its value is the format."""
DAMAGE = b"steersman.damage"
"""Key of what could not be read when the table was made: a list of [offset, size, reason]."""
RAW = "raw"
VERSION = b"1"
MOST_DAMAGE = 1000
"""Places that a table remembers."""

_FIELDS = {field.name: field for field in fields(OutcomeRecord)}
_REQUIRED = tuple(
    name
    for name, field in _FIELDS.items()
    if field.default is MISSING and field.default_factory is MISSING
)
_ARRAYS = {
    name: np.dtype(kind)
    for name, kind in (
        ("state", np.float64),
        ("match_tokens", np.float64),
        ("mask", np.bool_),
        ("request_features", np.float32),
        ("scores", np.float32),
    )
}
_MATRIX = "state"


def schema() -> pa.Schema:
    """Of the table."""
    import pyarrow as pa

    columns = [(name, _type(name)) for name in _FIELDS]
    return pa.schema([*columns, (RAW, pa.binary())], metadata={MARK: VERSION})


def is_outcome_table(path: Path) -> bool:
    """Whether a Parquet file is one of ours; False for what cannot be read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return MARK in (pq.read_schema(path).metadata or {})
    except (pa.ArrowException, OSError):
        return False


class OutcomeTableWriter:
    """Writes records to an open file, a row group at a time.

    Args:
        file: takes the table; complete when the `with` block has ended well, without meaning otherwise.
    """

    def __init__(self, file: BinaryIO) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = schema()
        names = [column.name for column in self._schema if pa.types.is_string(column.type)]
        self._writer = pq.ParquetWriter(
            file,
            self._schema,
            compression="zstd",
            use_dictionary=[*names, "replica_ids.list.element"],  # numbers hardly ever repeat
            use_byte_stream_split=["state.list.element.list.element"],
            write_page_checksum=True,
        )
        self.records = 0
        self.damage: Sequence[Damage] = ()
        """What could not be read; the table remembers it."""

    def write(self, records: Sequence[OutcomeRecord]) -> None:
        """One row group."""
        if records:
            self._writer.write_batch(_batch(records, self._schema))
            self.records += len(records)

    def __enter__(self) -> OutcomeTableWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        places = [(item.offset, item.size, item.reason) for item in self.damage[:MOST_DAMAGE]]
        if places:
            self._writer.add_key_value_metadata({DAMAGE: orjson.dumps(places)})
        self._writer.close()


def read_table(path: Path, only: Collection[str] | None = None) -> Iterator[OutcomeRecord | Damage]:
    """The records of a table in order, and what was damaged when it was made, or is now.

    Args:
        only: names of fields to read; the others, but for those without a default, have their defaults.

    Raises:
        FileNotFoundError: there is none.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
    except FileNotFoundError:
        raise
    except (pa.ArrowException, OSError) as error:
        yield Damage(path, 0, path.stat().st_size, f"is no readable Parquet file ({_line(error)})")
        return
    with file:
        metadata = file.schema_arrow.metadata or {}
        metadata = metadata | (file.metadata.metadata or {})
        for offset, size, reason in orjson.loads(metadata.get(DAMAGE, b"[]")):
            yield Damage(path, offset, size, reason)
        wanted = _FIELDS if only is None else {*only, *_REQUIRED, "superseded"}
        names = [name for name in file.schema_arrow.names if name in wanted or name == RAW]
        for group in range(file.num_row_groups):
            size = file.metadata.row_group(group).total_byte_size
            offset = file.metadata.row_group(group).column(0).file_offset
            try:
                table = file.read_row_group(group, columns=names, use_threads=False)
                yield from _records(table.combine_chunks())
            except (pa.ArrowException, OSError, ValueError, TypeError, KeyError) as error:
                yield Damage(path, offset, size, f"in row group {group} is damaged ({_line(error)})")


def count_records(path: Path) -> int:
    """Of a table that was just written, from its end."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def _type(name: str) -> pa.DataType:
    import pyarrow as pa

    if name in _ARRAYS:
        values = pa.list_(pa.from_numpy_dtype(_ARRAYS[name]))
        return pa.list_(values) if name == _MATRIX else values
    kinds = {
        "str": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "Priority": pa.int8(),
        "ToolChoice": pa.int8(),
        "QuestionType": pa.string(),
        "Status": pa.string(),
        "tuple[str, ...]": pa.list_(pa.string()),
        "tuple[int, ...]": pa.list_(pa.int64()),
    }
    return kinds[str(_FIELDS[name].type).removesuffix(" | None")]


def _batch(records: Sequence[OutcomeRecord], schema: pa.Schema) -> pa.RecordBatch:
    """The records in columns; those that do not fit as they are."""
    import pyarrow as pa

    raw: list[bytes | None] = [None] * len(records)
    try:
        columns = _columns(records)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        fitting = list(records)
        for i, record in enumerate(records):
            try:
                _columns([record])
            except (pa.ArrowException, OverflowError, ValueError, TypeError):
                raw[i] = record.to_json()
                fitting[i] = OutcomeRecord(record.request_id, record.arrival_unix_s, 0)
        columns = _columns(fitting)
    return pa.RecordBatch.from_arrays([*columns, pa.array(raw, pa.binary())], schema=schema)


def _columns(records: Sequence[OutcomeRecord]) -> list[pa.Array]:
    import pyarrow as pa

    columns = []
    for name in _FIELDS:
        values = [getattr(record, name) for record in records]
        if name in _ARRAYS:
            columns.append(_lists(name, values))
        else:
            columns.append(pa.array([_plain(value) for value in values], _type(name)))
    return columns


def _lists(name: str, arrays: Sequence[NDArray[Any] | None]) -> pa.Array:
    """A column of arrays, of matrices if it is the state; None stays None."""
    import pyarrow as pa

    dtype, expected = _ARRAYS[name], 2 if name == _MATRIX else 1
    missing = [array is None for array in arrays]
    given = [np.empty(0, dtype) if array is None else array for array in arrays]
    if any(array.size and array.ndim != expected for array in given):
        raise ValueError(f"{name} has not {expected} dimensions")
    lengths = [len(array) if array.size else 0 for array in given]
    flat = np.concatenate([array.ravel() for array in given]).astype(dtype, copy=False)
    values = pa.array(flat)
    if name == _MATRIX:
        widths = [array.shape[1] for array in given if array.size for _ in range(len(array))]
        values = pa.ListArray.from_arrays(_offsets(widths), values)
    mask = pa.array(missing) if any(missing) else None
    return pa.ListArray.from_arrays(_offsets(lengths), values, mask=mask)


def _offsets(lengths: Sequence[int]) -> pa.Array:
    import pyarrow as pa

    return pa.array(np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).astype(np.int32))


def _plain(value: Any) -> Any:
    """Enumerations as what they stand for."""
    return value.value if isinstance(value, Enum) else value


def _records(table: pa.Table) -> Iterator[OutcomeRecord]:
    names = [name for name in table.column_names if name != RAW]
    columns = [_values(name, table.column(name)) for name in names]
    raws = table.column(RAW).to_pylist()
    for raw, *values in zip(raws, *columns, strict=True):
        if raw is not None:
            yield OutcomeRecord.from_json(raw)
        else:
            yield OutcomeRecord(**dict(zip(names, values, strict=True)))


def _values(name: str, column: pa.ChunkedArray) -> list[Any]:
    """A column's values as fields of records."""
    if name not in _ARRAYS:
        return [typed(name, value) for value in column.to_pylist()]
    chunks = column.chunks
    return [array for chunk in chunks for array in _arrays(name, chunk)]


def _arrays(name: str, lists: pa.ListArray) -> Iterator[NDArray[Any] | None]:
    dtype = _ARRAYS[name]
    rows, values = lists.offsets.to_numpy(), lists.values
    present = lists.is_valid().to_numpy(zero_copy_only=False)
    widths = np.zeros(0, dtype=np.int64)
    if name == _MATRIX:
        inner = values.offsets.to_numpy()
        widths, rows, values = np.diff(inner), inner[rows], values.values
        outer = lists.offsets.to_numpy()
    flat = values.to_numpy(zero_copy_only=False).astype(dtype, copy=False)
    for i in range(len(lists)):
        if not present[i]:
            yield None
            continue
        array = flat[rows[i] : rows[i + 1]].copy()  # a view would keep the whole row group
        if name == _MATRIX and array.size:
            array = array.reshape(-1, widths[outer[i]])
        yield array


def _line(error: Exception) -> str:
    return str(error).split("\n", 1)[0].split(". ")[0]
