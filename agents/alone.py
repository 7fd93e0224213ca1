"""One process at a time, whichever it is."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from steersman.traces.errors import ArtifactError


@contextmanager
def alone(directory: Path, work: str) -> Iterator[None]:
    """Hold the lock of a directory, which need not exist; it ends with the process.

    Args:
        work: what is done meanwhile, for the message.

    Raises:
        ArtifactError: another process holds it, or the place cannot be written.
    """
    path = directory.with_name(f".{directory.name}.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise ArtifactError(
            f"{path}: cannot be written ({error.strerror}); give a writable directory"
        ) from None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ArtifactError(f"{directory}: another {work} is at work; wait for it") from None
    else:
        yield
    finally:
        os.close(handle)
