"""The outcome log: every decision and how it went, on disk, whatever happens to the process.

A directory of segments, each a file of frames (`traces/framing.py`). A writer appends to a segment of
its own, so several processes share a directory; after a crash the next writer starts a new segment,
and readers pass over the torn tail. Nothing here ever raises into the request path.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Protocol, TypeVar

from steersman.traces.errors import ConfigError, TraceError
from steersman.traces.framing import Damage, frame, read_frames
from steersman.traces.outcome_record import OutcomeRecord

__all__ = ["OutcomeLogWriter", "OutcomeRecord", "read_newest", "read_outcomes", "segments"]

log = logging.getLogger(__name__)

T = TypeVar("T")

STEM = "outcomes"
CHUNK_BYTES = 256 * 1024
"""Written at once."""


class Framable(Protocol):
    """What a log can hold."""

    @property
    def request_id(self) -> str:
        """For messages."""
        ...

    def to_json(self) -> bytes:
        """One JSON object without line breaks; raises TypeError or ValueError if it cannot be."""
        ...


class OutcomeLogWriter:
    """Appends records from memory to disk in a thread of its own.

    `append` only queues. The thread writes every `flush_interval_s`, so a killed process loses what it
    took in since; it syncs to the device every `sync_interval_s`, which bounds the loss to a power
    failure. A full disk or any other failure to write is counted in `write_errors`, and tried again;
    records wait in memory meanwhile, and are counted in `dropped` once `queue_records` of them do.

    Args:
        directory: made if missing.
        segment_bytes: a segment grows no larger.
        total_bytes: all segments together; the oldest are deleted, but never one in use.
        stem: segments are called `<stem>-*.log`.

    Raises:
        ConfigError: the directory cannot be used, or the bounds contradict each other.
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        segment_bytes: int = 64 * 2**20,
        total_bytes: int = 2**30,
        queue_records: int = 4096,
        flush_interval_s: float = 0.2,
        sync_interval_s: float = 5.0,
        stem: str = STEM,
    ) -> None:
        if total_bytes < 2 * segment_bytes:
            raise ConfigError(
                f"outcome log: total_bytes = {total_bytes} must be at least twice "
                f"segment_bytes = {segment_bytes}"
            )
        self.directory = Path(directory)
        self.written = 0
        """Records handed to the operating system."""
        self.write_errors = 0
        """Failed attempts to write, sync or rotate."""
        self._refused = 0
        self._unwritable = 0
        self._segment_bytes = segment_bytes
        self._total_bytes = total_bytes
        self._queue_records = queue_records
        self._flush_interval_s = flush_interval_s
        self._sync_interval_s = sync_interval_s
        self._stem = stem
        self._queue: deque[Framable] = deque()
        self._chunk = b""
        self._chunk_records = 0
        self._segment: _Segment | None = None
        self._synced_at_s = time.monotonic()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._make_directory()
        self._thread = threading.Thread(target=self._run, name="outcome-log", daemon=True)
        self._thread.start()

    def append(self, record: Framable) -> bool:
        """Queue a record: a microsecond, no I/O. False if it was dropped."""
        waiting = len(self._queue)
        if waiting >= self._queue_records or self._closed:
            self._refused += 1
            return False
        self._queue.append(record)
        if waiting * 2 >= self._queue_records:
            self._wake.set()
        return True

    @property
    def dropped(self) -> int:
        """Records lost: the queue was full, or a record was not writable."""
        return self._refused + self._unwritable  # counted by the caller's thread and by our own

    @property
    def queued(self) -> int:
        """Records not yet on disk."""
        return len(self._queue) + self._chunk_records

    def flush(self) -> bool:
        """Write and sync now. Blocks on the disk: not for an event loop. False if something failed."""
        with self._lock:
            return self._drain() and self._sync()

    def close(self) -> None:
        """Write what is queued and stop. Records that cannot be written now are dropped."""
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        self._thread.join()
        self.flush()
        with self._lock:
            self._unwritable += self.queued
            self._queue.clear()
            self._chunk, self._chunk_records = b"", 0
            self._end_segment()

    def __enter__(self) -> OutcomeLogWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closed:
            self._wake.wait(self._flush_interval_s)
            self._wake.clear()
            try:
                self._step()
            except Exception as error:  # the thread must outlive anything
                log.exception("the outcome log's writer failed; it goes on")
                self._failed("write to", error)

    def _step(self) -> None:
        with self._lock:
            self._drain()
            if time.monotonic() - self._synced_at_s >= self._sync_interval_s:
                self._sync()

    def _drain(self) -> bool:
        """Write until the queue is empty or the disk refuses."""
        while self._fill_chunk():
            try:
                self._write_chunk()
            except OSError as error:
                self._failed("write to", error)
                self._end_segment()
                return False
            self.written += self._chunk_records
            self._chunk, self._chunk_records = b"", 0
        return True

    def _fill_chunk(self) -> bool:
        """Take records off the queue, unless a chunk still waits from a failed attempt."""
        if self._chunk:
            return True
        frames: list[bytes] = []
        size, limit = 0, min(CHUNK_BYTES, self._segment_bytes)
        while size < limit and self._queue:
            framed = self._framed(self._queue[0])
            if framed is not None and size + len(framed) > limit and frames:
                break
            self._queue.popleft()
            if framed is None:
                self._unwritable += 1
            else:
                frames.append(framed)
                size += len(framed)
        self._chunk, self._chunk_records = b"".join(frames), len(frames)
        return bool(frames)

    def _framed(self, record: Framable) -> bytes | None:
        try:
            framed = frame(record.to_json())
        except (TypeError, ValueError) as error:
            log.warning(
                "outcome of request %r is not writable and was dropped: %s", record.request_id, error
            )
            return None
        return framed if len(framed) <= self._segment_bytes else None

    def _write_chunk(self) -> None:
        if self._segment is not None and self._segment.is_deleted():
            # Writing on would succeed, and all of it would be lost.
            log.warning("the outcome log in %s was deleted; a new segment begins", self.directory)
            self._end_segment()
        if self._segment is not None and self._segment.size + len(self._chunk) > self._segment_bytes:
            self._sync()
            self._end_segment()
        if self._segment is None:
            self._make_room()
            self._segment = _Segment(self.directory, self._stem)
        self._segment.write(self._chunk)

    def _make_room(self) -> None:
        """Delete the oldest segments until a new one fits."""
        found = [(path, path.stat().st_size) for path in segments(self.directory, self._stem)]
        total = sum(size for _, size in found)
        for path, size in found:
            if total + self._segment_bytes <= self._total_bytes:
                return
            if _delete_unused(path):
                total -= size

    def _sync(self) -> bool:
        self._synced_at_s = time.monotonic()
        try:
            if self._segment is not None:
                self._segment.sync()
        except OSError as error:
            self._failed("sync", error)
            return False
        return True

    def _end_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _failed(self, action: str, error: Exception) -> None:
        if self.write_errors == 0:
            log.warning("cannot %s the outcome log in %s: %s", action, self.directory, error)
        self.write_errors += 1

    def _make_directory(self) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise ConfigError(
                    f"outcome log directory '{self.directory}' cannot be made ({error.strerror}); "
                    "give a directory that can be written"
                ) from None
            self._failed("make a directory for", error)


class _Segment:
    """An open file of frames, locked while in use; a failed write leaves whole frames only."""

    def __init__(self, directory: Path, stem: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{stem}-{time.time_ns():020d}-{os.getpid()}.log"
        self._fd = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640
        )
        self.size = 0
        fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def write(self, data: bytes) -> None:
        done = 0
        try:
            while done < len(data):
                done += os.write(self._fd, memoryview(data)[done:])
        except OSError:
            os.ftruncate(self._fd, self.size)
            raise
        self.size += done

    def is_deleted(self) -> bool:
        """Somebody removed the file: it has no name any more."""
        return os.fstat(self._fd).st_nlink == 0

    def sync(self) -> None:
        os.fdatasync(self._fd)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            if self.size == 0:
                self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._fd)


def segments(directory: Path, stem: str = STEM) -> list[Path]:
    """The segments of a log directory, oldest first."""
    return sorted(directory.glob(f"{stem}-*.log"))


def read_outcomes(
    path: str | Path, *, on_damage: Callable[[Damage], None] | None = None
) -> Iterator[OutcomeRecord]:
    """Every whole record of a segment or of a log directory, in the order of writing.

    Args:
        on_damage: told of every place that was skipped, torn tails included; the default logs a
            warning for all but torn tails.

    Raises:
        TraceError: there is no such file, or a directory without segments.
    """
    path = Path(path)
    files = segments(path) if path.is_dir() else [path]
    if not files:
        raise TraceError("has no outcome log segments (outcomes-*.log)", path=str(path))
    report = on_damage or _warn
    for file in files:
        try:
            for offset, item in read_frames(file):
                if isinstance(item, Damage):
                    report(item)
                    continue
                try:
                    yield OutcomeRecord.from_json(item)
                except ValueError as error:
                    report(Damage(file, offset, len(item), f"is not an outcome record ({error})"))
        except OSError as error:
            raise TraceError(f"cannot be read ({error.strerror})", path=str(file)) from None


def read_newest(directory: str | Path, most: int, keep: Callable[[OutcomeRecord], T | None]) -> list[T]:
    """What `keep` makes of about the newest records of a log directory, None left out.

    Segments are read whole, from the newest back, until there are `most`; of the last one the newest are
    taken. Only what was kept is in memory. A segment that was deleted meanwhile, or cannot be read, is
    passed over.

    Raises:
        TraceError: a directory without segments.
    """
    found = segments(Path(directory))
    if not found:
        raise TraceError("has no outcome log segments (outcomes-*.log)", path=str(directory))
    newest: list[T] = []
    for path in reversed(found):
        if len(newest) >= most:
            break
        kept: deque[T] = deque(maxlen=most - len(newest))
        with contextlib.suppress(TraceError):
            for record in read_outcomes(path):
                item = keep(record)
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


def _delete_unused(path: Path) -> bool:
    """Delete a segment unless a writer holds it."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True  # another writer was faster
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        path.unlink(missing_ok=True)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True
