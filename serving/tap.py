"""What is learned from an answer that passes: its token counts. The bytes are never changed.

Server-sent events are counted, not parsed: JSON escapes line breaks, so a line that begins with `data:`
is an event whatever the text in it says. Only the last pieces are parsed, once, for their `usage`.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, NamedTuple

import orjson

_KEPT_BYTES = 4 * 2**10
"""Of the end of a stream, at least: the event with `usage` has under 1 KiB, and `[DONE]` follows."""
_MARK = b"\ndata:"
_TOOL_CALLS = (
    b'"finish_reason":"tool_calls"',
    b'"finish_reason": "tool_calls"',
    b'"finish_reason":"function_call"',
    b'"finish_reason": "function_call"',
)
"""How an engine says that its answer calls a tool. In a text the quotes would be escaped."""
_ERROR = re.compile(rb'^data: *\{ *"error" *:', re.MULTILINE)
"""How an engine says, in a stream it has begun, that it cannot go on."""


class Usage(NamedTuple):
    """What a backend says it counted."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class StreamTap:
    """Counts the events of one stream."""

    __slots__ = ("_carry", "_kept", "_kept_bytes", "events")

    def __init__(self) -> None:
        self.events = 0
        """Events seen, the final `[DONE]` included."""
        self._carry = b"\n"
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Another piece passes; pieces may be cut anywhere."""
        joined = self._carry + chunk
        self.events += joined.count(_MARK)
        # One byte less than the mark: enough for a mark cut in two, too little to count one twice.
        self._carry = joined[-(len(_MARK) - 1) :]
        kept = self._kept
        kept.append(chunk)
        self._kept_bytes += len(chunk)
        while self._kept_bytes - len(kept[0]) >= _KEPT_BYTES:
            self._kept_bytes -= len(kept.popleft())

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes so far end with a whole event (or there were none)."""
        return self._carry == b"\n" or self._carry.endswith((b"\n\n", b"\n\r\n"))

    @property
    def complete(self) -> bool:
        """Whether the stream ended as OpenAI's do: with `[DONE]`, and no error told before it."""
        tail = b"".join(self._kept)
        return b"[DONE]" in tail[-64:] and _ERROR.search(tail) is None

    def usage(self) -> Usage | None:
        """`usage` of the last event that has one, if the backend sent it."""
        tail = b"".join(self._kept)
        for line in reversed(tail.split(b"\n")):
            if line.startswith(b"data:") and b'"usage"' in line:
                usage = read_usage(line[5:])
                if usage is not None:
                    return usage
        return None

    @property
    def called_tool(self) -> bool:
        """Whether the end of the stream says that the answer calls a tool."""
        return calls_tool(b"".join(self._kept))

    def estimated_tokens(self, *, chat: bool) -> int:
        """Output tokens where the backend did not say: an event each, but for the first of a chat (the
        role) and the last (`[DONE]`)."""
        return max(self.events - (2 if chat else 1), min(self.events, 1))


def calls_tool(answer: bytes) -> bool:
    """Whether an answer, or the end of one, calls a tool."""
    return any(mark in answer for mark in _TOOL_CALLS)


def read_usage(document: bytes) -> Usage | None:
    """`usage` of an OpenAI response or event; None if there is none or it is not one."""
    try:
        parsed = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    usage = parsed.get("usage") if isinstance(parsed, dict) else None
    if not isinstance(usage, dict):
        return None
    prompt, completion = _count(usage.get("prompt_tokens")), _count(usage.get("completion_tokens"))
    if prompt is None or completion is None:
        return None
    details = usage.get("prompt_tokens_details")
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(prompt, completion, cached or 0)


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if is_count else None
