"""Changing one member of a JSON object and no other byte.

A body is forwarded as it came. Where something in it must change (the replica has another name for the
model), only the value is cut out and replaced: what follows and precedes it, its odd numbers, escapes
and blanks, stays as the client wrote it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

_STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'
_TOKEN = re.compile(rb"[\[\]{}]|" + _STRING, re.DOTALL)
_COLON = re.compile(rb"[ \t\r\n]*:[ \t\r\n]*")
_SCALAR = re.compile(rb"[^ \t\r\n,}\]]+")
_OPENING, _CLOSING = b"[{", b"]}"


def set_member(body: bytes, name: str, value: bytes) -> bytes:
    """The object with its top-level member `name` set to `value`, wherever it stands in it.

    A name that is there twice (the last counts, for most parsers) is set in both places; one that is not
    there is added at the front.

    Args:
        body: a JSON object; anything else gives a ValueError or nonsense.
        name: the member's name.
        value: its new value, as JSON.
    """
    spans = list(_values(body, name))
    if not spans:
        start = body.index(b"{") + 1
        empty = body[start:].lstrip(b" \t\r\n").startswith(b"}")
        member = json.dumps(name).encode() + b":" + value
        return body[:start] + member + (b"" if empty else b",") + body[start:]
    parts, at = [], 0
    for start, end in spans:
        parts += [body[at:start], value]
        at = end
    return b"".join((*parts, body[at:]))


def _values(body: bytes, name: str) -> Iterator[tuple[int, int]]:
    """(start, end) of the value of each top-level member of this name.

    Strings are skipped whole and numbers not looked at, so the time goes with the number of strings and
    brackets, not with the length of the prompt.
    """
    depth, at = 0, 0
    while match := _TOKEN.search(body, at):
        at = match.end()
        token = body[match.start()]
        if token in _OPENING:
            depth += 1
        elif token in _CLOSING:
            depth -= 1
        elif depth == 1 and (colon := _COLON.match(body, at)):
            at = colon.end()
            if _is_name(match[0], name):
                end = _end_of_value(body, at)
                yield at, end
                at = end


def _is_name(token: bytes, name: str) -> bool:
    # Any character may be written as an escape.
    return bool(json.loads(token.decode("utf-8", "surrogatepass"), strict=False) == name)


def _end_of_value(body: bytes, start: int) -> int:
    if body[start] not in b'"[{':
        match = _SCALAR.match(body, start)
        return match.end() if match else start
    depth, at = 0, start
    while match := _TOKEN.search(body, at):
        at = match.end()
        token = body[match.start()]
        depth += (token in _OPENING) - (token in _CLOSING)
        if depth == 0:
            return at
    return len(body)
