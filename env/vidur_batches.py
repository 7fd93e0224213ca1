"""What goes into one of Vidur's batches, and what its cost is made of: see `vidur.py`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.jit import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

TILE_TOKENS = 128
"""Matrix products work on tiles of so many tokens; the first tile hides behind reading the weights."""
FEATURES = (
    "batch",
    "tokens",
    "tokens_over_tile",
    "tiled_tokens_over_tile",
    "decode_context",
    "prefill_squared",
)
"""What a stage's time for a batch is linear in."""


@njit
def whole_prompts(
    batch: Ints,
    queue: Ints,
    prompt: Ints,
    taken: Ints,
    most_tokens: int,
    most: int,
    idle: Ints,
    idles: int,
    room: int,
) -> tuple[int, int, int]:
    """Prompts if any fits, otherwise decodes; the batch's size, prompts begun, idle ones used."""
    count = 0
    longest = 0
    for i in queue:
        longest = max(longest, prompt[i])
        if (count + 1) * longest > most_tokens or count == most:
            break
        batch[count] = i
        taken[i] = prompt[i]
        count += 1
    if count > 0:
        return count, count, 0
    count = min(idles, room)
    for k in range(count):
        batch[k] = idle[k]
        taken[idle[k]] = 1
    for k in range(idles - count):
        idle[k] = idle[k + count]
    return count, 0, count


@njit
def chunks(
    batch: Ints,
    queue: Ints,
    prompt: Ints,
    done: Ints,
    taken: Ints,
    most_tokens: int,
    most: int,
    idle: Ints,
    idles: int,
    room: int,
) -> tuple[int, int, int]:
    """Decodes, then unfinished prompts, then new ones; as `whole_prompts`."""
    count = 0
    tokens = 0
    looked = min(idles, room)
    for decoding in (True, False):
        for k in range(looked):
            i = idle[k]
            if i < 0 or (done[i] > prompt[i]) != decoding:
                continue
            amount = 1 if decoding else min(prompt[i] - done[i], most_tokens - tokens)
            if amount <= 0:
                continue
            batch[count] = i
            taken[i] = amount
            tokens += amount
            count += 1
            idle[k] = -1 - i
    used = count
    begun = 0
    for i in queue:
        amount = min(prompt[i], most_tokens - tokens)
        if begun == most or count == room or amount <= 0:
            break
        batch[count] = i
        taken[i] = amount
        tokens += amount
        count += 1
        begun += 1
    kept = 0
    for k in range(idles):
        if idle[k] >= 0:
            idle[kept] = idle[k]
            kept += 1
    return count, begun, used


@njit
def features_of(batch: Ints, prompt: Ints, done: Ints, taken: Ints) -> Floats:
    """One number for each of FEATURES."""
    f = np.zeros(len(FEATURES))
    tokens = 0
    decoding = 0
    context = 0
    prefilling = 0
    squared = 0.0
    for i in batch:
        tokens += taken[i]
        if done[i] > prompt[i]:
            decoding += 1
            context += done[i]
        else:
            prefilling += 1
            squared += taken[i] * (taken[i] + 2.0 * done[i])
    rounded = (tokens + 7) // 8 * 8
    f[0] = 1.0
    f[1] = rounded
    f[2] = max(rounded - TILE_TOKENS, 0)
    f[3] = max((tokens + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS - TILE_TOKENS, 0)
    if decoding > 0:
        factor = 1.1 if decoding > 1 else 1.0
        f[4] = factor * decoding * ((context // decoding + 63) // 64 * 64)
    if prefilling > 0:
        f[5] = (1.1 if prefilling > 1 else 1.0) * squared
    return f
