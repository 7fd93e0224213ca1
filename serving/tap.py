"""What is learned from an answer that passes: its token counts. The bytes are never changed.

Server-sent events are counted, not parsed: JSON escapes line breaks, so a line that begins with `data:`
is an event whatever the text in it says. Only the last pieces are parsed, once, for their `usage`.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections import deque
from typing import Any, NamedTuple

import orjson

_KEPT_BYTES = 4 * 2**10
"""Of the end of a stream, at least: the event with `usage` has under 1 KiB, and `[DONE]` follows."""
_MARK = b"\ndata:"
_TOOL_CALLS = (b'"tool_calls"', b'"function_call"')
_ENDED_BY = (b'"finish_reason":', b'"finish_reason": ')
"""Before one of those: how an engine says that its answer calls a tool. In a text the quotes would be
escaped. Most streams have a reason in every event, and none of those."""
_ERROR = re.compile(rb'^data: *\{ *"error" *:', re.MULTILINE)
"""How an engine says, in a stream it has begun, that it cannot go on."""
_USAGE = re.compile(rb'(?<!\\)"usage"\s*:\s*(?=\{)')
"""Quotes inside a JSON string are escaped, so this is a key and not somebody's text."""
_RESPONSE_ID = re.compile(rb'(?<!\\)"id"\s*:\s*"(resp[A-Za-z0-9_-]{1,128})"')
"""A key, as above; what else has an id there (messages, calls) begins otherwise."""
_PARSED_BYTES = 64 * 2**10
"""A larger answer (embeddings, for the most part) is searched for its usage, not parsed."""
_OBJECT = json.JSONDecoder()
_MOST_BRACES = 8
"""Tried before an object is read by a decoder that tells where it ends, but takes its time."""


class Usage(NamedTuple):
    """What a backend says it counted."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class StreamTap:
    """Counts the events of one stream."""

    __slots__ = ("_carry", "_events", "_fresh", "_fresh_bytes", "_kept", "_kept_bytes")

    def __init__(self) -> None:
        self._fresh: list[bytes] = []
        self._fresh_bytes = 0
        self._events = 0
        self._carry = b"\n"
        self._kept: deque[bytes] = deque()
        self._kept_bytes = 0

    def feed(self, chunk: bytes) -> None:
        """Another piece passes; pieces may be cut anywhere. Read when there are enough of them, or
        somebody asks: pieces are small and many."""
        self._fresh.append(chunk)
        self._fresh_bytes += len(chunk)
        if self._fresh_bytes >= _KEPT_BYTES:
            self._catch_up()

    def _catch_up(self) -> None:
        """Read what has passed since the last time."""
        if self._fresh:
            chunk = b"".join(self._fresh)
            self._fresh.clear()
            self._fresh_bytes = 0
            self._read(chunk)

    def _read(self, chunk: bytes) -> None:
        joined = self._carry + chunk
        self._events += joined.count(_MARK)
        # One byte less than the mark: enough for a mark cut in two, too little to count one twice.
        self._carry = joined[-(len(_MARK) - 1) :]
        kept = self._kept
        kept.append(chunk)
        self._kept_bytes += len(chunk)
        while self._kept_bytes - len(kept[0]) >= _KEPT_BYTES:
            self._kept_bytes -= len(kept.popleft())

    @property
    def events(self) -> int:
        """Events seen, the final `[DONE]` included."""
        self._catch_up()
        return self._events

    @property
    def at_boundary(self) -> bool:
        """Whether the bytes so far end with a whole event (or there were none)."""
        self._catch_up()
        return self._carry == b"\n" or self._carry.endswith((b"\n\n", b"\n\r\n"))

    @property
    def complete(self) -> bool:
        """Whether the stream ended as OpenAI's do: with `[DONE]`, and no error told before it."""
        tail = self._tail()
        return b"[DONE]" in tail[-64:] and not (b'"error"' in tail and _ERROR.search(tail))

    def usage(self) -> Usage | None:
        """`usage` of the last event that has one, if the backend sent it."""
        return _last_usage(self._tail())

    def response_id(self, document: bytes = b"") -> str:  # noqa: ARG002
        """The id under which the replica may have stored this answer; '' for none.

        Args:
            document: the whole answer, if it was not a stream.
        """
        return ""

    @property
    def called_tool(self) -> bool:
        """Whether the end of the stream says that the answer calls a tool."""
        return calls_tool(self._tail())

    def _tail(self) -> bytes:
        """What is kept, in one piece."""
        self._catch_up()
        if len(self._kept) > 1:
            self._kept = deque((b"".join(self._kept),))
        return self._kept[0] if self._kept else b""

    def estimated_tokens(self, *, chat: bool) -> int:
        """Output tokens where the backend did not say: an event each, but for the first of a chat (the
        role) and the last (`[DONE]`)."""
        events = self.events
        return max(events - (2 if chat else 1), min(events, 1))


def calls_tool(answer: bytes) -> bool:
    """Whether an answer, or the end of one, calls a tool."""
    if b"_call" not in answer:  # nearly always, and one search is enough to tell
        return False
    return any(before + call in answer for call in _TOOL_CALLS for before in _ENDED_BY)


class ResponsesTap(StreamTap):
    """Counts the events of a stream of `/v1/responses`: named events, and no `[DONE]`."""

    __slots__ = ("_begun", "_edge", "_name")

    _MARK = b"\nevent:"
    _LONGEST = 64
    """Of a line that names an event; the longest name there is has 40."""
    _ENDS = (b"response.completed", b"response.incomplete")
    _FRAME_EVENTS = 8
    """Created, in progress; item and part added; text, part and item done; completed."""

    def __init__(self) -> None:
        super().__init__()
        self._edge = b"\n"
        self._name = b""
        self._begun = b""
        """The beginning of the stream, which has the id."""

    def _read(self, chunk: bytes) -> None:
        super()._read(chunk)
        if len(self._begun) < _KEPT_BYTES:
            self._begun += chunk[:_KEPT_BYTES]
        seen = self._edge + chunk
        _, mark, line = seen.rpartition(self._MARK)
        if mark and b"\n" in line:
            self._name = line.partition(b"\n")[0].strip()
        self._edge = seen[-self._LONGEST :]

    def response_id(self, document: bytes = b"") -> str:
        """In the first event of a stream, or near the beginning of a whole answer."""
        self._catch_up()
        match = _RESPONSE_ID.search(document or self._begun)
        return match[1].decode() if match else ""

    @property
    def complete(self) -> bool:
        """Whether the last event was one that ends an answer."""
        self._catch_up()
        return self._name in self._ENDS or super().complete

    def estimated_tokens(self, *, chat: bool) -> int:  # noqa: ARG002
        """Output tokens where the backend did not say: an event each, but for those around them."""
        events = self.events
        return max(events - self._FRAME_EVENTS, min(events, 1))


def read_usage(document: bytes) -> Usage | None:
    """`usage` of a whole OpenAI answer; None if there is none or it is not one."""
    if len(document) > _PARSED_BYTES:
        return _last_usage(document)
    try:
        parsed = orjson.loads(document)
    except orjson.JSONDecodeError:
        return None
    return _counts(parsed.get("usage")) if isinstance(parsed, dict) else None


def _last_usage(tail: bytes) -> Usage | None:
    """The last `usage` object in the end of an answer, which need not begin with whole JSON."""
    at = tail.rfind(b'"usage"')
    while at >= 0:
        match = _USAGE.match(tail, at)
        usage = _counts(_object_at(tail, match.end())) if match else None
        if usage is not None:
            return usage
        at = tail.rfind(b'"usage"', 0, at)
    return None


def _object_at(text: bytes, start: int) -> Any:
    """The JSON object that begins there; None if that is none."""
    end = start
    for _ in range(_MOST_BRACES):  # most have one pair of them or two
        end = text.find(b"}", end) + 1
        piece = text[start:end]
        if piece.count(b"{") == piece.count(b"}"):
            with contextlib.suppress(orjson.JSONDecodeError):
                return orjson.loads(piece)
            break
    try:
        parsed, _ = _OBJECT.raw_decode(text[start : start + _KEPT_BYTES].decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return parsed


def _counts(usage: Any) -> Usage | None:
    """Token counts in the names of chat completions, of responses, or of embeddings."""
    if not isinstance(usage, dict):
        return None
    prompt = _count(usage.get("prompt_tokens", usage.get("input_tokens")))
    completion = _count(usage.get("completion_tokens", usage.get("output_tokens")))
    total = _count(usage.get("total_tokens"))
    if prompt is not None and completion is None and total is not None and total >= prompt:
        completion = total - prompt
    if prompt is None or completion is None:
        return None
    details = usage.get("prompt_tokens_details", usage.get("input_tokens_details"))
    cached = _count(details.get("cached_tokens")) if isinstance(details, dict) else None
    return Usage(prompt, completion, cached or 0)


def _count(value: Any) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**31
    return value if is_count else None
