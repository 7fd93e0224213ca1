"""The segment that a writer of the outcome log appends to."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from pathlib import Path

from steersman.traces.outcome_segments import FRAMED


class OpenSegment:
    """A new file of frames, locked while in use; a failed write leaves whole frames only."""

    def __init__(self, directory: Path, stem: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._path = directory / f"{stem}-{time.time_ns():020d}-{os.getpid()}{FRAMED}"
        self._fd = os.open(
            self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o640
        )
        self.size = 0
        self.opened_s = time.monotonic()
        fcntl.flock(self._fd, fcntl.LOCK_EX)  # others hold an empty segment for a look only

    def write(self, data: bytes) -> None:
        """Append whole frames, or raise OSError and leave the file as it was."""
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
        """To the device."""
        os.fdatasync(self._fd)

    def close(self) -> None:
        """Let go of it; an empty one is deleted."""
        with contextlib.suppress(OSError):
            if self.size == 0:
                self._path.unlink()
        with contextlib.suppress(OSError):
            os.close(self._fd)
