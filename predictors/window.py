"""What recent traffic teaches: a bounded, stratified sliding window, and the newest slice kept apart.

Most outcomes look alike: light load, short waits. A plain window of the last n would hold little else,
and a model fitted on it would forget what a busy replica is like. So the window keeps buckets, by
hardware, load and scale of the TTFT, and when it is full the *fullest* bucket gives up its oldest
member: what is rare stays, and within a bucket the newest stay.

The newest outcomes are held out first: they reach the buckets only when newer ones have come. A model
fitted on `train` is judged on `held`, which it has not seen and which is nearest to what comes next.
"""

from __future__ import annotations

import math
from collections import deque
from typing import Generic, TypeVar

T = TypeVar("T")

TTFT_OCTAVE_S = 0.02
"""TTFT up to here is one bucket; each doubling is another."""
MOST_OCTAVES = 12
LOAD_BANDS = 4


class StratifiedWindow(Generic[T]):
    """At most `capacity` members in buckets, and `held_out` newer ones.

    Args:
        capacity: of all buckets together, at least 1.
        held_out: members of the newest slice, at least 1.
    """

    def __init__(self, capacity: int, held_out: int) -> None:
        if capacity < 1 or held_out < 1:
            raise ValueError(f"capacity = {capacity} and held_out = {held_out} must be at least 1")
        self._capacity = capacity
        self._held_out = held_out
        self._held: deque[tuple[int, tuple[object, ...], T]] = deque()
        self._buckets: dict[tuple[object, ...], deque[tuple[int, T]]] = {}
        self._size = 0
        self._added = 0

    def __len__(self) -> int:
        return self._size + len(self._held)

    @property
    def bucket_sizes(self) -> dict[tuple[object, ...], int]:
        """Members of each bucket."""
        return {bucket: len(members) for bucket, members in self._buckets.items()}

    @property
    def train(self) -> list[T]:
        """The members of all buckets, oldest first."""
        members = [member for bucket in self._buckets.values() for member in bucket]
        return [item for _, item in sorted(members, key=lambda member: member[0])]

    @property
    def held(self) -> list[T]:
        """The newest slice, oldest first."""
        return [item for _, _, item in self._held]

    def add(self, item: T, bucket: tuple[object, ...]) -> None:
        """The next outcome; to be called in the order in which they ended."""
        self._held.append((self._added, bucket, item))
        self._added += 1
        if len(self._held) > self._held_out:
            number, key, oldest = self._held.popleft()
            self._buckets.setdefault(key, deque()).append((number, oldest))
            self._size += 1
            if self._size > self._capacity:
                self._give_up()

    def _give_up(self) -> None:
        """The fullest bucket loses its oldest member."""
        sizes = {key: (len(members), -members[0][0]) for key, members in self._buckets.items()}
        fullest = max(sizes, key=lambda key: sizes[key])
        members = self._buckets[fullest]
        members.popleft()
        self._size -= 1
        if not members:
            del self._buckets[fullest]


def latency_bucket(
    hardware: object, batch_use: float, waiting: float, ttft_s: float
) -> tuple[object, ...]:
    """The stratum of an outcome.

    Args:
        hardware: what tells replicas of different hardware and model apart.
        batch_use: share of the batch slots in use at the decision.
        waiting: requests in the replica's queue then.
        ttft_s: what came of it, positive.
    """
    octave = math.ceil(math.log2(max(ttft_s, TTFT_OCTAVE_S) / TTFT_OCTAVE_S))
    band = min(int(LOAD_BANDS * max(batch_use, 0.0)), LOAD_BANDS - 1)
    return hardware, band, waiting >= 1.0, min(octave, MOST_OCTAVES)
