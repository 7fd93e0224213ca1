"""The books of limits of one router, in its memory."""

from __future__ import annotations

from steersman.serving.limits.store import Ask, Bucket, Verdict
from steersman.serving.loops import Clock


class MemoryLimits:
    """A `LimitStore`. There is a bucket for each limit in the key file that was used, and no other."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        self._taken: dict[str, int] = {}

    async def take(self, ask: Ask) -> Verdict:
        """Grant all or nothing."""
        now_s = self._clock()
        levels = [self._level(bucket, now_s) for bucket in ask.buckets]
        taken = [self._taken.get(place.name, 0) for place in ask.places]
        waits_s = tuple(b.wait_s(level) for b, level in zip(ask.buckets, levels, strict=True))
        if any(waits_s) or any(n >= p.most for p, n in zip(ask.places, taken, strict=True)):
            return Verdict(tuple(levels), tuple(taken), granted=False, waits_s=waits_s)
        for i, bucket in enumerate(ask.buckets):
            levels[i] -= bucket.cost
            self._buckets[bucket.name] = levels[i], now_s
        for i, place in enumerate(ask.places):
            taken[i] += 1
            self._taken[place.name] = taken[i]
        return Verdict(tuple(levels), tuple(taken), granted=True)

    def settle(self, ask: Ask, more: tuple[float, ...]) -> None:
        """A granted request is over."""
        now_s = self._clock()
        for bucket, extra in zip(ask.buckets, more, strict=True):
            level = min(self._level(bucket, now_s) - extra, bucket.capacity)
            self._buckets[bucket.name] = level, now_s
        for place in ask.places:
            left = self._taken.get(place.name, 0) - 1
            if left > 0:
                self._taken[place.name] = left
            else:
                self._taken.pop(place.name, None)

    def _level(self, bucket: Bucket, now_s: float) -> float:
        """A bucket nobody has used is full."""
        level, at_s = self._buckets.get(bucket.name, (bucket.capacity, now_s))
        return bucket.refilled(level, now_s - at_s)
