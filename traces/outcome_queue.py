"""Records that wait in memory for the outcome log's writer, and the chunk that is written next."""

from __future__ import annotations

import logging
from collections import deque
from typing import Protocol

from steersman.traces.framing import frame

log = logging.getLogger(__name__)


class Framable(Protocol):
    """What a log can hold."""

    @property
    def request_id(self) -> str:
        """For messages."""
        ...

    def to_json(self) -> bytes:
        """One JSON object without line breaks; raises TypeError or ValueError if it cannot be."""
        ...


class OutcomeQueue:
    """First in, first out. One thread may append while another takes chunks.

    Args:
        most_records: that wait; further ones are refused.
        chunk_bytes: frames that are written at once.
        frame_bytes: a record whose frame is larger cannot be written.
    """

    def __init__(self, most_records: int, chunk_bytes: int, frame_bytes: int) -> None:
        self.refused = 0
        """Records that found no room; counted by the thread that appends."""
        self.unwritable = 0
        """Records that are no frame, or too large a one; counted by the thread that takes."""
        self._most_records = most_records
        self._chunk_bytes = chunk_bytes
        self._frame_bytes = frame_bytes
        self._records: deque[Framable] = deque()
        self._chunk = b""
        self._chunk_records = 0

    def __len__(self) -> int:
        """Records queued or in the chunk."""
        return len(self._records) + self._chunk_records

    def append(self, record: Framable) -> bool:
        """False if there is no room."""
        if len(self._records) >= self._most_records:
            self.refused += 1
            return False
        self._records.append(record)
        return True

    @property
    def filling(self) -> bool:
        """At least half of the room is taken."""
        return 2 * len(self._records) > self._most_records

    def chunk(self) -> bytes:
        """Frames to write, off the queue; the same ones until they are `done`. Empty: none wait."""
        if self._chunk:
            return self._chunk
        frames: list[bytes] = []
        size = 0
        while size < self._chunk_bytes and self._records:
            framed = self._framed(self._records[0])
            if framed is not None and size + len(framed) > self._chunk_bytes and frames:
                break
            self._records.popleft()
            if framed is None:
                self.unwritable += 1
            else:
                frames.append(framed)
                size += len(framed)
        self._chunk, self._chunk_records = b"".join(frames), len(frames)
        return self._chunk

    def done(self) -> None:
        """The chunk is on disk, or elsewhere."""
        self._chunk, self._chunk_records = b"", 0

    def clear(self) -> int:
        """Give up what waits; how many records that is."""
        lost = len(self)
        self._records.clear()
        self.done()
        return lost

    def _framed(self, record: Framable) -> bytes | None:
        try:
            framed = frame(record.to_json())
        except Exception as error:  # or it would stand in the way of all that follow
            log.warning(
                "outcome of request %r is not writable and was dropped: %s", record.request_id, error
            )
            return None
        return framed if len(framed) <= self._frame_bytes else None
