"""Which replica is believed to hold which prefix blocks (SPEC B5).

The belief comes from the router's own dispatches: a replica that was sent a prompt holds its blocks
until it has been sent so many others that its cache must have evicted them. Eviction is least
recently used within each replica's capacity, the tail of a prompt before its head, as vLLM frees
blocks; so what is left of a prompt is always a prefix of it.

One instance serves one pool and one block size. It is not thread-safe: the router uses it from its
event loop only, the simulator has one per cluster.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

FEW = 16
"""Bits that are read one by one in the time in which all are."""


class PrefixIndex:
    """Hash of a block → bitmask of the replicas that hold it, and a bounded LRU per replica.

    Memory is bounded by the sum of the capacities: an entry per replica and block held.

    Args:
        capacities: blocks each replica's cache can hold (KV capacity in tokens over tokens per block).
    """

    def __init__(self, capacities: Sequence[int]) -> None:
        self._capacities = [max(int(capacity), 0) for capacity in capacities]
        self._held: list[OrderedDict[int, float]] = [OrderedDict() for _ in self._capacities]
        self._holders: dict[int, int] = {}
        self._everyone = (1 << len(self._capacities)) - 1

    def __len__(self) -> int:
        """Distinct blocks held anywhere."""
        return len(self._holders)

    @property
    def replicas(self) -> int:
        """Number of replicas."""
        return len(self._capacities)

    def blocks_held(self, replica: int) -> int:
        """Blocks believed to be in one replica's cache."""
        return len(self._held[replica])

    def match(self, hashes: Sequence[int]) -> NDArray[np.int64]:
        """Number of leading blocks each replica holds, (replicas,).

        Who holds a block holds all before it: so where the first and the last block of a stretch are
        held by the same replicas, all between are too. It takes a number of look-ups in proportion to
        the logarithm of the longest match, for every depth at which some replica's match ends.

        Args:
            hashes: chained block hashes of a prompt, first block first.
        """
        matched = np.zeros(len(self._capacities), dtype=np.int64)
        holders, count, depth = self._holders.get, len(hashes), 0
        alive = self._everyone
        while alive:
            # All of `alive` hold the first `depth` blocks; how far do all of them go?
            held, end, step, still = depth, count, 1, alive
            while held < end:
                probe = min(held + step, end)
                found = alive & holders(hashes[probe - 1], 0)
                if found == alive:
                    held = probe
                    step = 2 * step if end == count else max((end - held) // 2, 1)
                else:
                    end, still = probe - 1, found
                    step = max((end - held) // 2, 1)
            if held == count:
                still = 0
            if held:
                _assign(matched, alive ^ still, held)
            alive, depth = still, held
        return matched

    def oldest_s(self, replica: int) -> float:
        """When the blocks that the next ones would displace were last used; -inf while there is room."""
        held = self._held[replica]
        if not held or len(held) < self._capacities[replica]:
            return -math.inf
        return next(iter(held.values()))

    def insert(self, replica: int, hashes: Sequence[int], now_s: float) -> None:
        """A prompt with these blocks was sent to `replica`: it holds them, most recently used.

        A prompt longer than the capacity leaves its head.
        """
        capacity = self._capacities[replica]
        held = self._held[replica]
        bit = 1 << replica
        holders = self._holders
        # Last block first: the head ends most recent and outlives the tail.
        for block in reversed(hashes[:capacity]):
            if block in held:
                held.move_to_end(block)
            else:
                holders[block] = holders.get(block, 0) | bit
            held[block] = now_s
        self._shrink(replica)

    def forget(self, replica: int) -> None:
        """The replica restarted or was replaced: its cache is empty."""
        for block in self._held[replica]:
            self._release(block, 1 << replica)
        self._held[replica].clear()

    def resize(self, replica: int, capacity: int) -> None:
        """The replica's cache now holds `capacity` blocks; the least recently used go if it shrank."""
        self._capacities[replica] = max(int(capacity), 0)
        self._shrink(replica)

    def add_replica(self, capacity: int) -> int:
        """Append a replica with an empty cache; returns its position."""
        self._capacities.append(max(int(capacity), 0))
        self._held.append(OrderedDict())
        self._everyone = (1 << len(self._capacities)) - 1
        return len(self._capacities) - 1

    def copy(self) -> PrefixIndex:
        """An independent index with the same contents and the same order of eviction."""
        twin = PrefixIndex(self._capacities)
        twin._held = [held.copy() for held in self._held]
        twin._holders = self._holders.copy()
        return twin

    def _shrink(self, replica: int) -> None:
        held = self._held[replica]
        excess = len(held) - self._capacities[replica]
        if excess <= 0:
            return
        bit = 1 << replica
        for block in list(islice(held, excess)):
            del held[block]
            self._release(block, bit)

    def _release(self, block: int, bit: int) -> None:
        left = self._holders[block] & ~bit
        if left:
            self._holders[block] = left
        else:
            del self._holders[block]


def _assign(matched: NDArray[np.int64], replicas: int, depth: int) -> None:
    """Set `matched` to `depth` for every bit of `replicas`."""
    if replicas.bit_count() > FEW:
        known = np.frombuffer(replicas.to_bytes((len(matched) + 7) // 8, "little"), dtype=np.uint8)
        matched[np.unpackbits(known, count=len(matched), bitorder="little").view(np.bool_)] = depth
        return
    while replicas:
        lowest = replicas & -replicas
        matched[lowest.bit_length() - 1] = depth
        replicas ^= lowest
