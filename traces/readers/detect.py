"""Opening any trace: which format a file has is told by its content."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path

from steersman.traces.errors import TraceError
from steersman.traces.readers import agents, azure, mooncake, native, servegen
from steersman.traces.readers.order import Placed, checked_order
from steersman.traces.readers.outcomes import is_outcome_log, read_outcome_log
from steersman.traces.readers.source import Source, open_source
from steersman.traces.schema import Request
from steersman.traces.trace import Trace

_DATA = Path(__file__).resolve().parent.parent / "data"
BUNDLED = {
    "azure-chat": _DATA / "azure2023_conv.parquet",
    "mooncake-chat": _DATA / "mooncake_conversation.parquet",
    "agent-sessions": _DATA / "agent_sessions.parquet",
    "servegen-day2": _DATA / "servegen_m-large_day2.parquet",
    "servegen-day3": _DATA / "servegen_m-large_day3.parquet",
    "servegen-day4": _DATA / "servegen_m-large_day4.parquet",
}
"""Traces that ship with Steersman, by name."""


@dataclass(frozen=True, slots=True)
class Format:
    """A table of requests that we can read."""

    name: str
    columns: tuple[str, ...]
    """It is this format if it has all of these."""
    read: Callable[[Source, str], Iterator[Placed]]
    """(source, model name for requests without one) → requests with their places."""


FORMATS = (
    Format("steersman", native.COLUMNS, native.read_native),
    Format("azure", azure.AZURE_COLUMNS, azure.read_azure),
    Format("mooncake", mooncake.JSONL_COLUMNS, mooncake.read_mooncake),
    Format("mooncake-table", mooncake.TABLE_COLUMNS, mooncake.read_mooncake_table),
    Format("agent-sessions", agents.COLUMNS, agents.read_agents),
    Format("servegen", ("t_s", *servegen.COLUMNS), servegen.read_servegen),
    Format("servegen", ("t", *servegen.COLUMNS), servegen.read_servegen),
    Format("plain", azure.PLAIN_COLUMNS, azure.read_plain),
)
"""The first whose columns are all there wins: richer formats come before poorer ones."""


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A trace found and recognised, not yet read."""

    name: str
    path: Path
    format: str
    open: Callable[[str], Iterator[Placed]]


def find_trace(path_or_name: str | Path) -> TraceFile:
    """Look at a file (or a bundled trace's name) and recognise its format.

    Raises:
        TraceError: no such file, not a table, or columns that fit no format.
    """
    path = BUNDLED.get(str(path_or_name), Path(path_or_name))
    if path.is_dir() and not is_outcome_log(path):
        raise TraceError(
            "is a directory without outcome log segments (outcomes-*.log or outcomes-*.parquet)",
            path=str(path),
        )
    if not path.exists():
        raise TraceError(f"{path_or_name}: no such file{_did_you_mean(str(path_or_name))}")
    if not path.is_dir() and not path.is_file():
        raise TraceError("is not a regular file; save the trace to a file first", path=str(path))
    if is_outcome_log(path):
        return TraceFile(path.stem, path, "outcome-log", partial(read_outcome_log, path))
    source = open_source(path)
    for format_ in FORMATS:
        if set(format_.columns) <= set(source.columns):
            name = str(path_or_name) if path_or_name in BUNDLED else path.name.split(".")[0]
            return TraceFile(name, path, format_.name, partial(format_.read, source))
    raise TraceError(_no_format(source), path=str(path))


def open_trace(
    path_or_name: str | Path, *, model: str = "", limit: int | None = None, sort: bool = False
) -> Iterator[Request]:
    """Stream the requests of a trace file or a bundled trace (`azure-chat`), in order of arrival.

    Args:
        model: model name for requests whose trace names none.
        limit: stop after so many requests.
        sort: read all of it and sort, for a file that is not in order of arrival.

    Raises:
        TraceError: now, if the file is not a trace; while reading, at the first bad row.
    """
    file = find_trace(path_or_name)
    placed = file.open(model)
    if sort:
        placed = _sorted(placed)
    return islice(checked_order(placed, str(file.path)), limit)


def load_trace(
    path_or_name: str | Path, *, model: str = "", limit: int | None = None, sort: bool = False
) -> Trace:
    """`open_trace`, collected into columns.

    Raises:
        TraceError: as `open_trace`; or the file has no requests.
    """
    file = find_trace(path_or_name)
    requests = open_trace(path_or_name, model=model, limit=limit, sort=sort)
    trace = Trace.from_requests(file.name, requests)
    if not len(trace):
        raise TraceError("has no requests", path=str(file.path))
    return trace


def _sorted(placed: Iterator[Placed]) -> Iterator[Placed]:
    """In order of arrival. Times that count from the first row may be negative then: start at 0."""
    ordered = sorted(placed, key=lambda item: item[1].arrival_s)
    early_s = min(ordered[0][1].arrival_s, 0.0) if ordered else 0.0
    for place, request in ordered:
        yield place, replace(request, arrival_s=request.arrival_s - early_s) if early_s else request


def _did_you_mean(name: str) -> str:
    close = difflib.get_close_matches(name, BUNDLED, n=1)
    if close:
        return f"; did you mean the bundled trace '{close[0]}'?"
    return f"; give a path, or the name of a bundled trace ({', '.join(BUNDLED)})"


def _no_format(source: Source) -> str:
    """Name what the closest format lacks."""
    found = set(source.columns)
    closest = max(FORMATS, key=lambda f: (len(found & set(f.columns)) / len(f.columns), len(f.columns)))
    missing = [column for column in closest.columns if column not in found]
    shown = ", ".join(source.columns[:12]) + (", …" if len(source.columns) > 12 else "")
    if len(missing) == len(closest.columns):
        needed = "; ".join(f"{f.name}: {', '.join(f.columns)}" for f in FORMATS)
        return f"has columns {shown}, which no known format has (needed are {needed})"
    return (
        f"lacks the column{'s' * (len(missing) > 1)} {', '.join(missing)} of the format "
        f"'{closest.name}'; it has {shown}"
    )
