"""Lines that tell whether they are whole: `<length> <crc32> <json>\\n`.

Length and CRC are eight hexadecimal digits each and describe the JSON bytes, which contain no line
break. A crash can only tear the last line; a flipped byte spoils its own line and no other. To look
at a file by hand: `cut -d' ' -f3- FILE | jq`.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

HEADER_BYTES = 18
MAX_FRAME_BYTES = 64 * 2**20

_HEADER = re.compile(rb"[0-9a-f]{8} [0-9a-f]{8} ")


@dataclass(frozen=True, slots=True)
class Damage:
    """A place in a file where a record should be and is not."""

    path: Path
    offset: int
    """Bytes from the start of the file."""
    size: int
    """Bytes skipped."""
    reason: str
    torn: bool = False
    """The file ends in the middle of a record: a crash while writing, or a writer still at work."""


def frame(payload: bytes) -> bytes:
    """One line around `payload`, which must not contain a line break."""
    return b"%08x %08x %s\n" % (len(payload), zlib.crc32(payload), payload)


def looks_framed(head: bytes) -> bool:
    """True for the first bytes of a file of frames."""
    return _HEADER.match(head) is not None


def read_frames(path: Path) -> Iterator[tuple[int, bytes | Damage]]:
    """(offset, payload or damage) of a file of frames, in order.

    Raises:
        OSError: the file cannot be read.
    """
    with path.open("rb") as file:
        offset = 0
        while line := file.readline(MAX_FRAME_BYTES):
            reason = _fault(line)
            if reason is None:
                yield offset, line[HEADER_BYTES:-1]
            else:
                torn = not line.endswith(b"\n") and _at_end(file)
                yield offset, Damage(path, offset, len(line), "ends early" if torn else reason, torn)
            offset += len(line)


def _fault(line: bytes) -> str | None:
    """What is wrong with a line; None if nothing is."""
    if not line.endswith(b"\n"):
        return "has no end of line"
    if _HEADER.match(line) is None:
        return "has no length and checksum in front"
    payload = line[HEADER_BYTES:-1]
    if len(payload) != int(line[:8], 16):
        return f"has {len(payload)} bytes instead of {int(line[:8], 16)}"
    if zlib.crc32(payload) != int(line[9:17], 16):
        return "has a wrong checksum"
    return None


def _at_end(file: BinaryIO) -> bool:
    """True if nothing follows; moves nothing."""
    here = file.tell()
    more = file.read(1)
    file.seek(here)
    return not more
