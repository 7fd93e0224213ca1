"""Hashes of a prompt's prefix blocks: equal hashes mean equal prefixes (SPEC A1, B5).

A block is `BLOCK_BYTES` of the prompt in UTF-8, about `BLOCK_TOKENS` tokens, as llm-d's router takes
them. Its hash covers the model and everything before it, and is the same in every process and on every
machine, so that routers can share what they know.

All blocks are hashed at once. Each word of a block is scrambled with a key of its own and the finaliser
of MurmurHash3 (Appleby 2011, public domain); the sum of a block, scrambled again with its number, is
added to those of all blocks before it. Not cryptographic: who builds two prompts of equal hashes
misleads the guess of what is cached where, and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

BLOCK_BYTES = 64
BLOCK_TOKENS = 16
MOST_BLOCKS = 4096
"""Prefixes are compared over their first 256 KiB, about 65 000 tokens."""

UInt64 = NDArray[np.uint64]

_WORD = np.dtype("<u8")
_GOLDEN = 0x9E3779B97F4A7C15
_WORDS = BLOCK_BYTES // 8
_MASK = 2**64 - 1
_KEYS = np.array([(_GOLDEN * (i + 1)) & _MASK for i in range(_WORDS)], dtype=np.uint64)
_PLACES = np.array([(_GOLDEN * (i + 101)) & _MASK for i in range(MOST_BLOCKS)], dtype=np.uint64)
_SHIFT = np.uint64(33)
_FIRST, _SECOND = np.uint64(0xFF51AFD7ED558CCD), np.uint64(0xC4CEB9FE1A85EC53)

FEW_BLOCKS = 8
"""Up to which Python's own integers are faster than arrays."""
_UNPACK = Struct(f"<{_WORDS}Q").iter_unpack
_KEY_INTS: tuple[int, ...] = tuple(_KEYS.tolist())
_PLACE_INTS: tuple[int, ...] = tuple(_PLACES[:FEW_BLOCKS].tolist())
_FIRST_INT, _SECOND_INT = int(_FIRST), int(_SECOND)


def block_hashes(model: str, prompt: Iterable[bytes]) -> tuple[int, ...]:
    """63-bit hashes of the full blocks of a prompt, given in parts of any size."""
    most = MOST_BLOCKS * BLOCK_BYTES
    data = bytearray()
    for part in prompt:
        data += part[: most - len(data)]
        if len(data) == most:
            break
    blocks = len(data) // BLOCK_BYTES
    if blocks == 0:
        return ()
    name = model.encode("utf-8", "surrogatepass")
    seed = (crc32(name) << 32 | crc32(name, len(name))) * _GOLDEN & _MASK
    if blocks <= FEW_BLOCKS:
        return _few(memoryview(data)[: blocks * BLOCK_BYTES], seed)
    words = np.frombuffer(data, dtype=_WORD, count=blocks * _WORDS).reshape(blocks, _WORDS)
    own = _scrambled(words ^ _KEYS).sum(axis=1, dtype=np.uint64)
    prefix = np.cumsum(_scrambled(own ^ _PLACES[:blocks]), dtype=np.uint64)
    prefix += np.uint64(seed)
    return tuple((_scrambled(prefix) >> np.uint64(1)).tolist())


def _few(data: memoryview, seed: int) -> tuple[int, ...]:
    """The same, a block at a time."""
    hashes = []
    prefix = seed
    for place, words in zip(_PLACE_INTS, _UNPACK(data), strict=False):
        own = 0
        for word, key in zip(words, _KEY_INTS, strict=True):
            own += _scrambled_int(word ^ key)
        prefix += _scrambled_int((own & _MASK) ^ place)
        hashes.append(_scrambled_int(prefix & _MASK) >> 1)
    return tuple(hashes)


def _scrambled_int(value: int) -> int:
    """As `_scrambled`."""
    value = (value ^ (value >> 33)) * _FIRST_INT & _MASK
    value = (value ^ (value >> 33)) * _SECOND_INT & _MASK
    return value ^ (value >> 33)


def _scrambled(values: UInt64) -> UInt64:
    """MurmurHash3's 64-bit finaliser, in place."""
    values ^= values >> _SHIFT
    values *= _FIRST
    values ^= values >> _SHIFT
    values *= _SECOND
    values ^= values >> _SHIFT
    return values
