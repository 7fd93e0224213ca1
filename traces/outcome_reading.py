"""Reading an outcome log back: segments still in frames and compacted ones alike."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import TypeVar

from steersman.traces.errors import TraceError
from steersman.traces.framing import Damage, looks_framed, read_frames
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.outcome_segments import FRAMED, segments, table_of

log = logging.getLogger(__name__)

T = TypeVar("T")

PARQUET = b"PAR1"
NO_SEGMENTS = "has no outcome log segments (outcomes-*.log or outcomes-*.parquet)"


def is_outcome_log(path: Path) -> bool:
    """A directory with segments, or one segment of either form."""
    if path.is_dir():
        return bool(segments(path))
    try:
        with path.open("rb") as file:
            head = file.read(64)
    except OSError:
        return False
    if head.startswith(PARQUET):
        from steersman.traces.outcome_table import is_outcome_table

        return is_outcome_table(path)
    return looks_framed(head)


def read_outcomes(
    path: str | Path,
    *,
    on_damage: Callable[[Damage], None] | None = None,
    only: Collection[str] | None = None,
    attempts: bool = False,
) -> Iterator[OutcomeRecord]:
    """Every whole record of a segment or of a log directory, in the order of writing: one a request.

    A segment that is compacted or deleted meanwhile is read in its other form, or passed over.

    Args:
        on_damage: told of every place that was skipped, torn tails included; the default logs a
            warning for all but torn tails.
        only: names of the fields that are needed. Of compacted segments the others may be left at
            their defaults, which is several times as fast.
        attempts: also those that were superseded; a request may then have several records.

    Raises:
        TraceError: there is no such file, or a directory without segments.
    """
    path = Path(path)
    is_log = path.is_dir()
    files = segments(path) if is_log else [path]
    if not files:
        raise TraceError(NO_SEGMENTS, path=str(path))
    report = on_damage or _warn
    for file in files:
        try:
            for item in read_segment(file, only):
                if isinstance(item, Damage):
                    report(item)
                elif attempts or not item.superseded:
                    yield item
        except FileNotFoundError as error:
            if not is_log:
                raise TraceError(f"cannot be read ({error.strerror})", path=str(file)) from None
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror})", path=str(file)) from None


def read_segment(path: Path, only: Collection[str] | None = None) -> Iterator[OutcomeRecord | Damage]:
    """One segment of either form: whole records, superseded ones too, and the places that were skipped.

    Raises:
        FileNotFoundError: it is gone in both forms.
        OSError: it cannot be read.
    """
    try:
        with path.open("rb") as file:
            is_table = file.read(4) == PARQUET
        if not is_table:
            yield from _read_framed(path)
            return
    except FileNotFoundError:
        # Compacted since it was listed, or since it was looked at; nothing of it has been read.
        if path.suffix != FRAMED:
            raise
        path = table_of(path)
    from steersman.traces.outcome_table import read_table

    yield from read_table(path, only)


def _read_framed(path: Path) -> Iterator[OutcomeRecord | Damage]:
    for offset, item in read_frames(path):
        if isinstance(item, Damage):
            yield item
            continue
        try:
            yield OutcomeRecord.from_json(item)
        except ValueError as error:
            yield Damage(path, offset, len(item), f"is not an outcome record ({error})")


def read_newest(directory: str | Path, most: int, keep: Callable[[OutcomeRecord], T | None]) -> list[T]:
    """What `keep` makes of about the newest records of a log directory, None left out; not of those that
    were superseded.

    Segments are read whole, from the newest back, until there are `most`; of the last one the newest are
    taken. Only what was kept is in memory. A segment that was deleted meanwhile, or cannot be read, is
    passed over.

    Raises:
        TraceError: a directory without segments.
    """
    found = segments(Path(directory))
    if not found:
        raise TraceError(NO_SEGMENTS, path=str(directory))
    newest: list[T] = []
    for path in reversed(found):
        if len(newest) >= most:
            break
        kept: deque[T] = deque(maxlen=most - len(newest))
        with contextlib.suppress(OSError):
            for record in read_segment(path):
                if isinstance(record, Damage):
                    _warn(record)
                    continue
                item = None if record.superseded else keep(record)
                if item is not None:
                    kept.append(item)
        newest = [*kept, *newest]
    return newest


def _warn(damage: Damage) -> None:
    if not damage.torn:
        log.warning(
            "%s: skipped %d bytes at byte %d: the record %s",
            damage.path,
            damage.size,
            damage.offset,
            damage.reason,
        )
