"""SQL over an outcome log, by DuckDB: compacted segments and those still in frames as one view.

Views: `outcomes`, with every column of `OutcomeRecord` but the prompt's text, and `prompts` with
`request_id` and `prompt_text`, empty unless text was to be logged.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.outcome_compaction import write_table
from steersman.traces.outcome_reading import NO_SEGMENTS
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.outcome_segments import FRAMED, segments, table_of

TEXT = "prompt_text"


@dataclass(frozen=True)
class Answer:
    """Rows of a query."""

    columns: tuple[str, ...]
    rows: list[tuple[Any, ...]]
    cut: bool
    """There are more."""


def query(log: str | Path, sql: str, *, most: int | None = None) -> Answer:
    """Ask a log directory, or one segment of either form.

    Args:
        sql: one statement that answers rows.
        most: rows to return.

    Raises:
        TraceError: there is no log, or it cannot be read.
        ConfigError: the statement is wrong, in one line.
    """
    import duckdb

    with _tables(Path(log)) as tables, duckdb.connect() as connection:
        try:
            _open_views(connection, tables)
        except duckdb.Error as error:
            raise TraceError(f"cannot be queried ({_line(error)})", path=str(log)) from None
        try:
            asked = connection.execute(sql)
            if asked is None:
                raise ConfigError("the query is empty; write for example: select * from outcomes")
            columns = tuple(column[0] for column in asked.description or ())
            rows = asked.fetchall() if most is None else asked.fetchmany(most + 1)
        except duckdb.Error as error:
            raise ConfigError(f"the query is wrong: {_line(error)}") from None
    cut = most is not None and len(rows) > most
    return Answer(columns, rows[:most] if cut else rows, cut)


@contextlib.contextmanager
def _tables(log: Path) -> Iterator[list[str]]:
    """Names of Parquet files that hold all of the log; those of frames are made for the occasion."""
    found = segments(log) if log.is_dir() else [log]
    if not found or not found[0].exists():
        raise TraceError(NO_SEGMENTS, path=str(log))
    with tempfile.TemporaryDirectory(prefix="steersman-query-") as scratch:
        tables = []
        for path in found:
            if path.suffix != FRAMED:
                tables.append(str(path))
                continue
            table = Path(scratch) / table_of(path).name
            try:
                write_table(path, table)
            except FileNotFoundError:
                table = table_of(path)  # compacted, or deleted, since it was listed
            except OSError as error:
                raise TraceError(f"cannot be read ({error.strerror})", path=str(path)) from None
            if table.exists():
                tables.append(str(table))
        yield tables


def _open_views(connection: Any, tables: list[str]) -> None:
    # Nothing is fetched from anywhere, whatever the statement says.
    connection.execute("SET autoinstall_known_extensions = false; SET autoload_known_extensions = false")
    everything = f"FROM read_parquet({_quoted(tables)}, union_by_name = true)"
    present = {row[0] for row in connection.execute(f"DESCRIBE {everything}").fetchall()}
    names = [field.name for field in fields(OutcomeRecord) if field.name in present]
    shown = ", ".join(name for name in names if name != TEXT)
    connection.execute(f"CREATE VIEW attempts AS SELECT {shown} {everything}")
    if "superseded" in present:
        everything += " WHERE NOT coalesce(superseded, false)"
    connection.execute(f"CREATE VIEW outcomes AS SELECT {shown} {everything}")
    if TEXT in present:
        connection.execute(f"CREATE VIEW prompts AS SELECT request_id, {TEXT} {everything}")


def _quoted(paths: list[str]) -> str:
    return "[" + ", ".join("'" + path.replace("'", "''") + "'" for path in paths) + "]"


def _line(error: Exception) -> str:
    return " ".join(str(error).split("\n\n", 1)[0].split())
