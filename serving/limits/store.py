"""What is asked of the books of limits, wherever they are kept.

A *bucket* holds up to `capacity` and fills by `rate_per_s`; a request takes its cost out. It is let in
while the bucket holds the cost, or is full: so a request that costs more than the bucket holds is not
refused for ever, but puts it into debt, and in the long run nobody takes more than the rate. A *place*
is taken for as long as a request lasts. All that a request asks for is granted together or not at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

LEASE_S = 60.0
"""A place whose router died is free again after this time; one that lives renews its own."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a request takes out of a bucket."""

    name: str
    capacity: float
    rate_per_s: float
    cost: float

    def refilled(self, level: float, since_s: float) -> float:
        """The level after some time."""
        return min(self.capacity, level + max(since_s, 0.0) * self.rate_per_s)

    def wait_s(self, level: float) -> float:
        """Time until it is granted; 0 if it is."""
        return max(min(self.cost, self.capacity) - level, 0.0) / self.rate_per_s


@dataclass(frozen=True, slots=True)
class Place:
    """One of so many that may be taken at a time."""

    name: str
    most: int


@dataclass(frozen=True, slots=True)
class Ask:
    """All that one request asks for."""

    request_id: str
    buckets: tuple[Bucket, ...]
    places: tuple[Place, ...]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    levels: tuple[float, ...]
    """Of the buckets, in the order asked, after what was granted."""
    taken: tuple[int, ...]
    """Of the places, this request's included if it was granted."""
    granted: bool
    waits_s: tuple[float, ...] = ()
    """Until each bucket would grant it, if it was not granted."""


class LimitStore(Protocol):
    """Keeps the books."""

    async def take(self, ask: Ask) -> Verdict:
        """Grant all or nothing."""
        ...

    def settle(self, ask: Ask, more: tuple[float, ...]) -> None:
        """A granted request is over: its places are free, and each bucket is charged what it cost more
        than was taken (negative: gets back). Returns at once."""
        ...
