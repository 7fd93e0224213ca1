"""Answers that are none: a 200 whose body is not what an engine says.

An error page of something in between, a half-written object, the log of a crash: where nothing has gone
to the client yet, such an answer is tried elsewhere. Only the outside is looked at, so that whatever an
engine may answer passes; and where nobody has anything better, the client gets it as it is.
"""

from __future__ import annotations

import re

_BLANK = b" \t\r\n\x00"
_EVENT = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry)?:")
"""How a stream of events begins: with a field, or a comment (HTML's specification, 9.2.6)."""
_LONGEST_FIELD = 16


def is_whole_answer(body: bytes) -> bool:
    """Whether a complete body may be an engine's: a JSON object, as far as its two ends tell."""
    return body.lstrip(_BLANK)[:1] == b"{" and body.rstrip(_BLANK)[-1:] == b"}"


def begins_stream(piece: bytes) -> bool:
    """Whether a first piece may begin a stream of events; a very short one may."""
    return _EVENT.match(piece) is not None or (
        len(piece) < _LONGEST_FIELD and b":" not in piece and b"<" not in piece and b"{" not in piece
    )
