"""The files of an outcome log: what they are called, who holds them, how much they may take.

A log is a directory of segments. A segment is written as frames (`outcomes-*.log`, `framing.py`), held
by a lock as long as somebody writes it, and later compacted to a table (`outcomes-*.parquet`,
`outcome_table.py`) of the same stem. The table appears whole and before the frames are deleted: where
both are there, the frames are to be deleted and nobody reads them.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

FRAMED = ".log"
TABLE = ".parquet"
PARTIAL = ".partial"

OUTCOMES = "outcomes"
_NEW_S = 60.0


def segments(directory: Path, stem: str = OUTCOMES) -> list[Path]:
    """The segments of a log directory, oldest first, each in one form."""
    # In this order: a table appears before its frames go, so that none is missed in between.
    framed = {path.stem: path for path in directory.glob(f"{stem}-*{FRAMED}")}
    tables = {path.stem: path for path in directory.glob(f"{stem}-*{TABLE}")}
    found = framed | tables
    return [found[name] for name in sorted(found)]


def framed_segments(directory: Path, stem: str = OUTCOMES) -> list[Path]:
    """The segments that have not been compacted, and what is left of some that have; oldest first."""
    return sorted(directory.glob(f"{stem}-*{FRAMED}"))


def table_of(framed: Path) -> Path:
    """The name of a segment once it is compacted."""
    return framed.with_suffix(TABLE)


def partial_of(table: Path) -> Path:
    """The name of a table while it is written; no reader looks at it."""
    return table.with_name(f".{table.name}{PARTIAL}")


def framed_of(partial: Path) -> Path:
    """The frames that a table is being made of."""
    return partial.with_name(partial.name.lstrip(".").removesuffix(TABLE + PARTIAL) + FRAMED)


def partials(directory: Path, stem: str = OUTCOMES) -> list[Path]:
    """Tables that are being written, or were when somebody was killed."""
    return sorted(directory.glob(f".{stem}-*{TABLE}{PARTIAL}"))


@contextmanager
def held(path: Path) -> Iterator[int | None]:
    """The open file of a segment that nobody else writes or compacts meanwhile, or of a directory of
    them that nobody else compacts; None if somebody does, or if it is gone."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        yield None
        return
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield None
            return
        # Whoever held it before may have deleted it.
        yield fd if os.fstat(fd).st_nlink else None
    finally:
        os.close(fd)


def is_closed(path: Path) -> bool:
    """Whether a segment has records and nobody writes it. An empty one may just have been opened."""
    try:
        if path.stat().st_size == 0:
            return False
    except FileNotFoundError:
        return False
    with held(path) as fd:
        return fd is not None


def needs_compaction(directory: Path) -> bool:
    """Whether there is a closed segment of frames, and nobody compacts already."""
    with held(directory) as fd:
        if fd is None:
            return False
    return any(is_closed(path) for path in framed_segments(directory))


def size_bytes(directory: Path) -> int:
    """All segments together, in whatever form."""
    total = 0
    for path in (*segments(directory), *partials(directory)):
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def make_room(
    directory: Path, needed: int, *, total_bytes: int, segment_bytes: int, stem: str = OUTCOMES
) -> None:
    """Delete the oldest segments until `needed` bytes more fit into `total_bytes`.

    Segments in use are never deleted, and count with all they may grow to, `segment_bytes`.
    """
    sizes: dict[Path, int] = {}
    tables = directory.glob(f"{stem}-*{TABLE}")
    for path in (*framed_segments(directory, stem), *tables, *partials(directory, stem)):
        try:
            size = path.stat().st_size
        except FileNotFoundError:
            continue
        growing = path.suffix == FRAMED and _may_grow(path)
        sizes[path] = max(size, segment_bytes) if growing else size
    total = sum(sizes.values())
    for path in sorted(sizes, key=lambda path: path.name.lstrip(".")):
        if total + needed <= total_bytes:
            return
        if _delete_unused(path):
            total -= sizes[path]


def sync_directory(directory: Path) -> None:
    """What was created, renamed or deleted in it is so after a power failure too."""
    fd = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def is_new(path: Path) -> bool:
    """Whether a segment was opened so recently that its writer may not have locked it yet."""
    try:
        return time.time() - path.stat().st_mtime < _NEW_S
    except FileNotFoundError:
        return False


def _may_grow(path: Path) -> bool:
    with held(path) as fd:
        return fd is None or (os.fstat(fd).st_size == 0 and is_new(path))


def _delete_unused(path: Path) -> bool:
    """Delete a file of a segment unless a writer or a compaction holds the segment."""
    if path.suffix == PARTIAL:
        framed = framed_of(path)
        if framed.exists():
            with held(framed) as fd:
                if fd is None:
                    return False
        path.unlink(missing_ok=True)
        return True
    if path.suffix == TABLE:
        path.unlink(missing_ok=True)
        return True
    with held(path) as fd:
        if fd is None:
            return not path.exists()
        if os.fstat(fd).st_size == 0 and is_new(path):
            return False
        path.unlink(missing_ok=True)
    return True
