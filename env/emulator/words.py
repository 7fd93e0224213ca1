"""The text an emulated model writes: one short word per token, the same for the same request."""

from __future__ import annotations

from functools import lru_cache

_WORDS = """
a all and at bay beam bow by calm chart clear cliff cloud coast course crew current
dawn deck deep down east ebb fair far fast fleet fog for from gale glass gulf gust
harbour head heel helm high home hull in island keel keep knot land lee light line
log long low mast moon night north of on out over port quay reef rope sail sea ship
shore slow south star steady steer stern storm strait tack the tide to under watch
water wave we weather west wharf wind with yard
"""
WORDS: tuple[str, ...] = tuple(f" {word}" for word in _WORDS.split())
"""Every word keeps its leading space, as a tokenizer's words do."""


def word(seed: int, position: int) -> str:
    """The token at `position` (from 0) of an answer."""
    return WORDS[(seed + position * (position + 7)) % len(WORDS)]


@lru_cache(maxsize=4)
def word_tails(tail: str) -> tuple[bytes, ...]:
    """Every word with the same text after it, encoded: what a streamed chunk ends with."""
    return tuple((text + tail).encode() for text in WORDS)
