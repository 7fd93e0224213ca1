"""The outcome log: every decision and how it went, on disk, whatever happens to the process.

A directory of segments (`outcome_segments.py`), each a file of frames (`framing.py`) until it is
compacted (`outcome_compaction.py`). A writer appends to a segment of its own, so several processes share
a directory; after a crash the next writer starts a new segment, and readers (`outcome_reading.py`) pass
over the torn tail. Nothing here ever raises into the request path.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType

from steersman.traces.errors import ConfigError
from steersman.traces.open_segment import OpenSegment
from steersman.traces.outcome_overflow import Overflow
from steersman.traces.outcome_queue import Framable, OutcomeQueue
from steersman.traces.outcome_reading import read_newest, read_outcomes
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.outcome_segments import OUTCOMES, make_room, segments

__all__ = ["OutcomeLogWriter", "OutcomeRecord", "read_newest", "read_outcomes", "segments"]

log = logging.getLogger(__name__)

CHUNK_BYTES = 256 * 1024
"""Written at once."""


class OutcomeLogWriter:
    """Appends records from memory to disk in a thread of its own.

    `append` only queues. The thread writes every `flush_interval_s`, so a killed process loses what it
    took in since; it syncs to the device every `sync_interval_s`, which bounds the loss to a power
    failure. A full disk or any other failure to write is counted in `write_errors`, and tried again;
    records wait in the overflow meanwhile, and once that is full and `queue_records` of them wait here,
    they are counted in `dropped`.

    Args:
        directory: made if missing.
        segment_bytes: a segment grows no larger.
        total_bytes: all segments together, compacted ones too; the oldest are deleted, but never one in
            use.
        segment_s: a segment is closed at this age, so that little traffic is compacted too.
        stem: segments are called `<stem>-*.log`.
        overflow: where what the disk refuses waits, for any writer of this log that has the same. None:
            a new one.
        checked: it could be written when it was looked at before, so whatever is wrong now is waited out
            as a full disk is.

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
        segment_s: float = 3600.0,
        stem: str = OUTCOMES,
        overflow: Overflow | None = None,
        checked: bool = False,
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
        self.offered = 0
        """Records handed over, those that were dropped included."""
        self.handing_s = 0.0
        """Processor time of those who hand over, as far as they tell."""
        self._writing_s = 0.0
        self._lost = 0
        """Records that still waited when it was closed."""
        self._segment_bytes = segment_bytes
        self._total_bytes = total_bytes
        self._flush_interval_s = flush_interval_s
        self._sync_interval_s = sync_interval_s
        self._segment_s = segment_s
        self._stem = stem
        self.overflow = overflow or Overflow()
        self._ails = ""
        """What failed last, and has not been done since."""
        self._chunk_bytes = min(CHUNK_BYTES, segment_bytes)
        self._queue = OutcomeQueue(queue_records, self._chunk_bytes, segment_bytes)
        self._segment: OpenSegment | None = None
        self._synced_at_s = time.monotonic()
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._closed = False
        self._make_directory(checked=checked)
        self._thread = threading.Thread(target=self._run, name="outcome-log", daemon=True)
        self._thread.start()

    def append(self, record: Framable) -> bool:
        """Queue a record: a microsecond, no I/O. False if it was dropped.

        Nobody may change it any more: it is made JSON of later, in the thread of the writer.
        """
        self.offered += 1
        if self._closed:
            self._queue.refused += 1
            return False
        taken = self._queue.append(record)
        if taken and self._queue.filling:
            self._wake.set()
        return taken

    @property
    def dropped(self) -> int:
        """Records lost: the queue was full, or a record was not writable."""
        return self._queue.refused + self._queue.unwritable + self._lost

    @property
    def cpu_s(self) -> float:
        """Processor time that the log has taken so far: of its thread, and of those who hand over."""
        return self.handing_s + self._writing_s

    @property
    def queued(self) -> int:
        """Records not yet on disk, but for those that wait in the overflow."""
        return len(self._queue)

    def flush(self) -> bool:
        """Write and sync now. Blocks on the disk: not for an event loop. False if something failed."""
        with self._lock:
            return self._drain() and self._sync()

    def close(self, *, last: bool = True) -> None:
        """Write what is queued and stop.

        Args:
            last: nobody else has the same overflow, so what waits there is dropped if the disk still
                refuses it. Else only what has no room in it is.
        """
        if self._closed:
            return
        self._closed = True
        self._wake.set()
        self._thread.join()
        self.flush()
        with self._lock:
            lost = self._queue.clear()
            if last:
                lost += self.overflow.records
                self.overflow.close()
            self._lost = lost
            self._end_segment()
        if lost:
            log.error("%d records of the log in %s cannot be written and are lost", lost, self.directory)

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
            now_s = time.monotonic()
            is_old = self._segment is not None and now_s - self._segment.opened_s >= self._segment_s
            if is_old or now_s - self._synced_at_s >= self._sync_interval_s:
                self._sync()
            if is_old:
                self._end_segment()
        self._writing_s = time.thread_time()

    def _drain(self) -> bool:
        """Write all there is. What the disk refuses goes to the overflow, as far as it fits."""
        writes = self._write_overflow()
        while chunk := self._queue.chunk():
            writes = writes and self._tried(partial(self._write, chunk))
            if not writes and not self.overflow.put(chunk):
                return False
            self._queue.done()
        return writes

    def _write_overflow(self) -> bool:
        if not self.overflow.records:
            return True
        return self._tried(lambda: self.overflow.drain(self._write, self._chunk_bytes))

    def _tried(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except OSError as error:
            self._failed("write to", error)
            self._end_segment()
            return False
        return True

    def _write(self, frames: bytes) -> None:
        if self._segment is not None and self._segment.is_deleted():
            # Writing on would succeed, and all of it would be lost.
            log.warning("the outcome log in %s was deleted; a new segment begins", self.directory)
            self._end_segment()
        if self._segment is not None and self._segment.size + len(frames) > self._segment_bytes:
            self._sync()
            self._end_segment()
        if self._segment is None:
            self._make_room()
            self._segment = OpenSegment(self.directory, self._stem)
        self._segment.write(frames)
        self.written += frames.count(b"\n")
        self._works("write to")

    def _make_room(self) -> None:
        """Delete the oldest segments until a new one fits."""
        make_room(
            self.directory,
            self._segment_bytes,
            total_bytes=self._total_bytes,
            segment_bytes=self._segment_bytes,
            stem=self._stem,
        )

    def _sync(self) -> bool:
        self._synced_at_s = time.monotonic()
        try:
            if self._segment is not None:
                self._segment.sync()
                self._works("sync")
        except OSError as error:
            self._failed("sync", error)
            return False
        return True

    def _end_segment(self) -> None:
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _failed(self, action: str, error: Exception) -> None:
        if self._ails != action:
            log.warning("cannot %s the outcome log in %s: %s", action, self.directory, error)
        self._ails = action
        self.write_errors += 1

    def _works(self, action: str) -> None:
        if self._ails == action:
            log.warning("the outcome log in %s can be written again", self.directory)
            self._ails = ""

    def _make_directory(self, *, checked: bool) -> None:
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not checked and error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise ConfigError(
                    f"outcome log directory '{self.directory}' cannot be made ({error.strerror}); "
                    "give a directory that can be written"
                ) from None
            self._failed("make a directory for", error)
