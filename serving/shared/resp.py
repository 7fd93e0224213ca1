"""The protocol of Valkey and Redis servers (RESP 2): commands out, replies in."""

from __future__ import annotations

from typing import TypeAlias

Reply: TypeAlias = "bytes | int | list[Reply] | ReplyError | None"
Word: TypeAlias = bytes | str | int | float

MOST_BYTES = 2**20
"""Of a reply that is not complete: what is asked here is answered in a few hundred."""


class ReplyError(Exception):
    """The server refused a command; the text begins with a word in capitals that says why."""

    @property
    def code(self) -> str:
        """That word: safe to log, where the text may hold what was sent."""
        return str(self).partition(" ")[0][:40]


class BadReply(Exception):  # noqa: N818 (what came)
    """What came is not the protocol."""


def command(*words: Word) -> bytes:
    """A command as it goes over the wire; floats in full, so that both sides reckon alike."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        text = word if isinstance(word, bytes) else str(word).encode()  # of a float all digits
        parts.append(b"$%d\r\n%b\r\n" % (len(text), text))
    return b"".join(parts)


class Replies:
    """Takes bytes as they come, cut anywhere, and gives whole replies."""

    def __init__(self) -> None:
        self._buffer = b""

    def feed(self, data: bytes) -> list[Reply]:
        """Those that are complete now. An error is a reply too: it is one command's, not the line's.

        Raises:
            BadReply: the other side does not speak the protocol.
        """
        self._buffer = buffer = self._buffer + data if self._buffer else data
        replies: list[Reply] = []
        at = 0
        try:
            while at < len(buffer):
                reply, at = _parse(buffer, at)
                replies.append(reply)
        except _MoreToComeError:
            pass
        except ValueError:
            raise BadReply from None
        self._buffer = buffer[at:]
        if len(self._buffer) > MOST_BYTES:
            raise BadReply
        return replies


class _MoreToComeError(Exception):
    """The reply is not complete."""


def _parse(buffer: bytes, at: int) -> tuple[Reply, int]:
    """The reply that begins here, and where the next one does."""
    end = buffer.find(b"\r\n", at)
    if end < 0:
        raise _MoreToComeError
    kind, text, after = buffer[at : at + 1], buffer[at + 1 : end], end + 2
    if kind == b"+":
        return text, after
    if kind == b"-":
        return ReplyError(text.decode("utf-8", "replace")), after
    if kind not in (b":", b"$", b"*"):
        raise BadReply
    number = int(text)
    if kind == b":":
        return number, after
    if number < 0:
        return None, after
    if number > MOST_BYTES:
        raise BadReply
    return _bulk(buffer, after, number) if kind == b"$" else _items(buffer, after, number)


def _bulk(buffer: bytes, at: int, size: int) -> tuple[bytes, int]:
    end = at + size
    if len(buffer) < end + 2:
        raise _MoreToComeError
    return buffer[at:end], end + 2


def _items(buffer: bytes, at: int, count: int) -> tuple[list[Reply], int]:
    items: list[Reply] = []
    for _ in range(count):
        item, at = _parse(buffer, at)
        items.append(item)
    return items, at
