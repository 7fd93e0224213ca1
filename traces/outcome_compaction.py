"""Compacting an outcome log: from closed segments of frames to tables.

A kill at any moment neither loses nor doubles a record: the table is written beside the frames under
another name, is synced, gets its name in one step, and only then the frames are deleted. Whoever comes
after a kill finds the frames alone (and begins anew), or the table with frames that readers already
ignore (and deletes them).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from steersman.traces.errors import TraceError
from steersman.traces.framing import Damage
from steersman.traces.outcome_reading import NO_SEGMENTS, read_segment
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.outcome_segments import (
    framed_of,
    framed_segments,
    held,
    is_new,
    make_room,
    partial_of,
    partials,
    segments,
    sync_directory,
    table_of,
)
from steersman.traces.outcome_table import OutcomeTableWriter, count_records

GROUP_RECORDS = 4096
GROUP_VALUES = 1 << 20
"""Numbers in the arrays of a row group: what bounds the memory where pools are large."""


@dataclass
class Compacted:
    """What was done."""

    segments: int = 0
    records: int = 0
    damaged: int = 0
    """Places that could not be read; the tables remember them."""
    bytes_before: int = 0
    bytes_after: int = 0
    busy: bool = False
    """Somebody else is compacting this log: nothing was done."""


def compact(
    directory: str | Path, *, total_bytes: int | None = None, segment_bytes: int = 64 * 2**20
) -> Compacted:
    """Compact every closed segment, the oldest first; one process at a time does.

    Args:
        total_bytes: all segments and the table being written together; the oldest are deleted to make
            room for it. None: no bound.
        segment_bytes: to which segments in use may grow.

    Raises:
        TraceError: no such directory, no segment in it, or a table cannot be written.
    """
    directory = Path(directory)
    if not directory.is_dir() or not segments(directory):
        raise TraceError(NO_SEGMENTS, path=str(directory))
    done = Compacted()
    try:
        with held(directory) as alone:
            done.busy = alone is None
            if not done.busy:
                for path in partials(directory):
                    _drop_orphan(path)
                for framed in framed_segments(directory):
                    with held(framed) as fd:
                        if fd is not None:
                            _compact(framed, os.fstat(fd).st_size, done, total_bytes, segment_bytes)
    except OSError as error:
        reason = error.strerror or str(error)
        raise TraceError(f"cannot be compacted ({reason})", path=str(directory)) from None
    return done


def _compact(
    framed: Path, size: int, done: Compacted, total_bytes: int | None, segment_bytes: int
) -> None:
    """One segment, held."""
    table = table_of(framed)
    if not table.exists():
        if size == 0 and is_new(framed):
            return  # somebody has opened it and not locked it yet
        if size and total_bytes is not None:
            make_room(framed.parent, size, total_bytes=total_bytes, segment_bytes=segment_bytes)
        if size:
            records, damaged = write_table(framed, table)
            done.segments += 1
            done.records += records
            done.damaged += damaged
            done.bytes_before += size
            done.bytes_after += table.stat().st_size
    framed.unlink(missing_ok=True)
    sync_directory(framed.parent)


def write_table(framed: Path, table: Path) -> tuple[int, int]:
    """Write a segment's table and give it its name; returns records and damaged places.

    Raises:
        OSError: it cannot be written, and is not there.
    """
    partial = partial_of(table)
    damage: list[Damage] = []
    try:
        with open(partial, "wb", opener=_for_owner_and_group) as file:
            with OutcomeTableWriter(file) as writer:
                for group in _groups(framed, damage):
                    writer.write(group)
                writer.damage = damage
            file.flush()
            os.fsync(file.fileno())
        if count_records(partial) != writer.records:
            raise OSError(None, f"{partial} has not the records that were written")
        partial.replace(table)
    except BaseException:
        partial.unlink(missing_ok=True)
        raise
    sync_directory(table.parent)
    return writer.records, len(damage)


def _groups(framed: Path, damage: list[Damage]) -> Iterator[list[OutcomeRecord]]:
    """The whole records, so many at a time that they fit into memory."""
    group: list[OutcomeRecord] = []
    values = 0
    for item in read_segment(framed):
        if isinstance(item, Damage):
            damage.append(item)
            continue
        group.append(item)
        values += item.state.size + len(item.block_hashes)
        if len(group) == GROUP_RECORDS or values >= GROUP_VALUES:
            yield group
            group, values = [], 0
    if group:
        yield group


def _for_owner_and_group(path: str, flags: int) -> int:
    """As segments of frames are."""
    return os.open(path, flags | os.O_CLOEXEC, 0o640)


def _drop_orphan(partial: Path) -> None:
    """Somebody was killed while writing it, and its frames have been deleted to make room."""
    if not framed_of(partial).exists():
        partial.unlink(missing_ok=True)
