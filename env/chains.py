"""Whether the hashes of a trace are chained: each block's hash identifies the whole prefix before it.

Engines and routers make them so. Where it holds, runs of blocks can be kept and compared as one
(`segments.py`); recorded data may break it, and is then kept block by block (`prefix_cache.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.jit import njit
from steersman.env.prefix_cache import home_of


def chained(hashes: NDArray[np.int64], offsets: NDArray[np.int64]) -> bool:
    """Whether every hash follows the same hash wherever it stands, or always comes first.

    By induction it then stands for the same prefix everywhere, and no prompt has it twice.

    Args:
        hashes: of all prompts, (blocks,).
        offsets: where each prompt's begin, and the end of the last, (prompts + 1,).
    """
    table = np.full(1 << (2 * len(hashes) + 1).bit_length(), -1, dtype=np.int32)
    first = np.zeros(len(hashes) + 1, dtype=np.bool_)
    first[offsets] = True
    return bool(_follow(hashes, first, table))


@njit
def _follow(hashes: NDArray[np.int64], first: NDArray[np.bool_], table: NDArray[np.int32]) -> bool:
    """`first`: where prompts begin; `table`: by hash, open addressing, where it first stands."""
    size = table.shape[0]
    for k in range(hashes.shape[0]):
        i = home_of(hashes[k], size)
        while table[i] >= 0 and hashes[table[i]] != hashes[k]:
            i = (i + 1) & (size - 1)
        known = table[i]
        if known < 0:
            table[i] = k
        elif first[known] != first[k] or (not first[k] and hashes[known - 1] != hashes[k - 1]):
            return False
    return True
