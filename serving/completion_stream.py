"""Reads one OpenAI answer from the client's side: when it began, how much came, how it ended."""

from __future__ import annotations

from typing import Any

import orjson

from steersman.serving.tap import StreamTap

_TAIL_BYTES = 4096
"""Enough for the last two events of a stream: usage and `[DONE]`."""
_CONTENT_KEYS = ("content", "reasoning_content", "reasoning", "tool_calls", "text")


class CompletionStream:
    """Fed with the bytes of a server-sent event stream as they come.

    Events are parsed until the first that carries content, and at the end; those between are only
    counted, because a load client that parses every token measures itself.
    """

    def __init__(self) -> None:
        self.first_token_s: float | None = None
        """Clock time of the first event with content."""
        self.last_data_s: float | None = None
        self._tap = StreamTap()
        self._text = b""
        """From the start until the first content, from then on the last `_TAIL_BYTES`."""
        self._before_content = 0

    def feed(self, data: bytes, now_s: float) -> None:
        """Take the next bytes, in pieces of any size."""
        self.last_data_s = now_s
        self._tap.feed(data)
        self._text += data
        if self.first_token_s is not None:
            self._text = self._text[-_TAIL_BYTES:]
            return
        events = _complete_events(self._text)
        first = next((i for i, event in enumerate(events) if _has_content(event)), None)
        if first is not None:
            self.first_token_s = now_s
            self._before_content = first

    @property
    def finished(self) -> bool:
        """Whether the stream was closed in good order."""
        return b"data: [DONE]" in self._text

    @property
    def error(self) -> str:
        """The error event a server sends when it breaks in the middle; empty if there was none."""
        for event in _complete_events(self._text):
            if isinstance(event.get("error"), dict):
                return str(event["error"].get("message", "error event in the stream"))
        return ""

    @property
    def output_tokens(self) -> int:
        """From `usage` where the server sent it, else one per event with content."""
        for event in reversed(_complete_events(self._text)):
            usage = event.get("usage")
            if isinstance(usage, dict) and isinstance(usage.get("completion_tokens"), int):
                return int(usage["completion_tokens"])
        if self.first_token_s is None:
            return 0
        return max(self._tap.events - self._before_content - self.finished, 0)


def output_tokens_of(body: bytes) -> int:
    """Output tokens of an answer that was not streamed.

    Raises:
        ValueError: it is not an OpenAI completion with `usage`.
    """
    try:
        return int(orjson.loads(body)["usage"]["completion_tokens"])
    except (KeyError, TypeError, ValueError):
        raise ValueError("the answer is not an OpenAI completion with usage") from None


def error_message(body: bytes) -> str:
    """The message of an OpenAI-style error body, or the start of whatever it is; one line."""
    try:
        parsed = orjson.loads(body)
        inner = parsed.get("error", parsed)
        message = inner.get("message", "") if isinstance(inner, dict) else str(inner)
    except (AttributeError, orjson.JSONDecodeError):
        message = body[:200].decode("utf-8", "replace")
    return " ".join(str(message).split())


def _complete_events(data: bytes) -> list[dict[str, Any]]:
    """The JSON events of a stream; what is cut at either end, or is no JSON object, is left out."""
    events = []
    for line in data.replace(b"\r\n", b"\n").split(b"\n")[:-1]:
        if line.startswith(b"data: {"):
            try:
                events.append(orjson.loads(line[6:]))
            except orjson.JSONDecodeError:
                continue
    return events


def _has_content(event: dict[str, Any]) -> bool:
    for choice in event.get("choices") or ():
        delta = choice.get("delta") or choice
        if any(delta.get(key) for key in _CONTENT_KEYS):
            return True
    return False
