"""A process of the router's own that works beside it and answers once, on standard output."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

MOST_OUTPUT = 1 << 20


@dataclass
class Helper:
    """A process at work."""

    process: subprocess.Popen[bytes]
    began_s: float
    answer: IO[bytes]
    complaints: IO[bytes]

    def read_answer(self) -> bytes:
        """What it wrote, at most `MOST_OUTPUT`."""
        self.answer.seek(0)
        return self.answer.read(MOST_OUTPUT)

    def last_complaint(self) -> str:
        """The last line that it wrote to standard error."""
        self.complaints.seek(0)
        lines = self.complaints.read(MOST_OUTPUT).decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def close(self) -> None:
        """End it, if it has not ended, and forget it."""
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.answer.close()
        self.complaints.close()


def launch(command: Sequence[str], now_s: float) -> Helper:
    """Start it; its standard input is a pipe that ends when this process does.

    Raises:
        OSError: it cannot be started.
    """
    answer, complaints = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115
    one_thread = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=answer,
            stderr=complaints,
            env={**os.environ, **one_thread},
            start_new_session=True,
        )
    except OSError:
        answer.close()
        complaints.close()
        raise
    return Helper(process, now_s, answer, complaints)
