"""Prompts for a trace that has none: text as long as recorded, sharing what was recorded as shared.

A trace holds token counts and hashes of prefix blocks, never text. The text made here is one short word
and a space per token, four characters, which is what tokenizers and their estimates take for a token. It
is a function of the trace and a salt: equal block hashes give equal text, and the turns of a session
without hashes each begin with the whole prompt of the turn before. Another salt gives other text
throughout, so that a second replay does not profit from what the first left in the caches.
"""

from __future__ import annotations

from functools import lru_cache
from hashlib import shake_128

from steersman.traces.schema import Request

_CONSONANTS = "bdfgklmnprstvzhj"
_VOWELS = "aeio"
WORDS: tuple[str, ...] = tuple(
    f"{first}{vowel}{last} " for first in _CONSONANTS for vowel in _VOWELS for last in "nrst"
)
"""256 words of four characters, the space included: one byte of a digest names one."""


def prompt_text(request: Request, salt: str = "") -> str:
    """The prompt of a recorded request, `request.input_tokens` words long."""
    tokens = max(request.input_tokens, 1)
    parts: list[str] = []
    if request.block_tokens > 0:
        blocks = request.block_hashes[: -(-tokens // request.block_tokens)]
        parts = [_block(block, request.block_tokens, salt) for block in blocks]
    covered = len(parts) * request.block_tokens
    if covered < tokens:
        # With hashes the rest is the request's own; without, it runs on with the session.
        own = request.request_id if parts else request.session_id or request.request_id
        parts.append(_words(f"{salt} text {own}", tokens - covered))
    return "".join(parts)[: 4 * tokens]


@lru_cache(maxsize=8_192)
def _block(block: int, tokens: int, salt: str) -> str:
    return _words(f"{salt} block {block}", tokens)


def _words(seed: str, count: int) -> str:
    # An extendable-output hash: a shorter text is a prefix of a longer one of the same seed.
    return "".join(map(WORDS.__getitem__, shake_128(seed.encode()).digest(count)))
