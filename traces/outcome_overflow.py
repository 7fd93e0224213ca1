"""Records that a disk refused, in memory that outlives the process which took them in.

A router that cannot write its log goes on serving, and its workers may be replaced or killed meanwhile.
So what is refused waits in memory that forked processes share: whoever can write next, writes it.

Layout: three int64 (where the frames begin, where they end, how many there are), then the frames. What
is not used takes no memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import struct
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST_BYTES = 64 * 2**20
"""Kept unless told otherwise."""
_HEAD = struct.Struct("qqq")
_BEGIN = mmap.PAGESIZE
"""Of the frames, so that their pages can be given back."""


class Overflow:
    """Made before the processes that share it are forked. Threads may share it too.

    Args:
        most_bytes: kept; what comes beyond is not taken.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most_bytes = most_bytes
        self._memory = mmap.mmap(-1, _BEGIN + most_bytes)
        self._set(_BEGIN, _BEGIN, 0)
        self._thread_lock = threading.Lock()
        # A record lock on a file goes with the process that holds it, however that ends.
        if hasattr(os, "memfd_create"):
            self._lock_fd = os.memfd_create("outcome-overflow")
        else:  # not Linux
            with tempfile.TemporaryFile() as file:
                self._lock_fd = os.dup(file.fileno())

    @property
    def records(self) -> int:
        """How many wait."""
        return self._get()[2]

    @property
    def size_bytes(self) -> int:
        """What they take."""
        begin, end, _ = self._get()
        return end - begin

    def put(self, frames: bytes) -> bool:
        """Take whole frames (`framing.py`) in, each of which ends with a line break; False if they do
        not fit. Never fails."""
        with self._locked():
            begin, end, records = self._get()
            if end - begin + len(frames) > self._most_bytes:
                return False
            if end + len(frames) > len(self._memory):
                self._memory.move(_BEGIN, begin, end - begin)
                begin, end = _BEGIN, _BEGIN + end - begin
            self._memory[end : end + len(frames)] = frames
            self._set(begin, end + len(frames), records + frames.count(b"\n"))
        return True

    def drain(self, write: Callable[[bytes], None], most_bytes: int) -> None:
        """Hand all over to `write`, the oldest first.

        What `write` raises is raised here, and what it did not take stays. If the process is killed
        between a write and the note of it, one piece is there twice rather than not at all.

        Args:
            write: takes pieces of whole frames.
            most_bytes: of a piece, unless a single frame has more.
        """
        with self._locked():
            begin, end, records = self._get()
            while begin < end:
                piece = self._piece(begin, end, most_bytes)
                write(piece)
                begin, records = begin + len(piece), records - piece.count(b"\n")
                self._set(begin, end, records)
            self._empty()

    def close(self) -> None:
        """Of this process; others keep theirs. Nothing waits in what is closed, or is taken in."""
        if not self._memory.closed:
            self._memory.close()
            os.close(self._lock_fd)

    def _piece(self, begin: int, end: int, most_bytes: int) -> bytes:
        limit = min(begin + most_bytes, end)
        last = self._memory.rfind(b"\n", begin, limit)
        if last < 0:
            last = self._memory.find(b"\n", limit, end)
        return self._memory[begin : last + 1 if last >= 0 else end]

    def _empty(self) -> None:
        used = self._get()[1] - _BEGIN
        self._set(_BEGIN, _BEGIN, 0)
        if used and hasattr(mmap, "MADV_REMOVE"):
            self._memory.madvise(mmap.MADV_REMOVE, _BEGIN, used)

    def _get(self) -> tuple[int, int, int]:
        if self._memory.closed:
            return _BEGIN, _BEGIN, 0
        begin, end, records = _HEAD.unpack_from(self._memory)
        return begin, end, records

    def _set(self, begin: int, end: int, records: int) -> None:
        _HEAD.pack_into(self._memory, 0, begin, end, records)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        with self._thread_lock:
            fcntl.lockf(self._lock_fd, fcntl.LOCK_EX)
            try:
                yield
            finally:
                fcntl.lockf(self._lock_fd, fcntl.LOCK_UN)
