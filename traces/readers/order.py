"""Requests in order of arrival, and those who follow others linked to them."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from steersman.traces.errors import TraceError
from steersman.traces.schema import Request

Placed = tuple[int, Request]
"""The place in the file (line or row) and what was read there."""

T = TypeVar("T")
K = TypeVar("K")
V = TypeVar("V")


def reordered(items: Iterable[tuple[float, float, T]]) -> Iterator[T]:
    """Sort a nearly sorted stream by time, in bounded memory; equal times keep their order.

    Args:
        items: (watermark, time, item). The watermark promises that nothing read from here on, this
            item included, has an earlier time.
    """
    heap: list[tuple[float, int, T]] = []
    for count, (watermark, time, item) in enumerate(items):
        while heap and heap[0][0] < watermark:
            yield heapq.heappop(heap)[2]
        heapq.heappush(heap, (time, count, item))
    while heap:
        yield heapq.heappop(heap)[2]


def checked_order(items: Iterable[Placed], path: str) -> Iterator[Request]:
    """Pass requests on; the first that arrives before its predecessor is an error.

    Raises:
        TraceError: names the row.
    """
    last_s = float("-inf")
    for place, request in items:
        if request.arrival_s < last_s:
            raise TraceError(
                f"arrives at {request.arrival_s:.6g} s, before the request above it ({last_s:.6g} s); "
                "sort the file by time, or read it with --sort",
                path=path,
                row=place,
            )
        last_s = request.arrival_s
        yield request


class Recent(Generic[K, V]):
    """A dictionary that forgets its oldest entries: memory stays bounded on endless files."""

    def __init__(self, capacity: int = 1_000_000) -> None:
        self._entries: OrderedDict[K, V] = OrderedDict()
        self._capacity = capacity

    def __setitem__(self, key: K, value: V) -> None:
        self._entries[key] = value
        if len(self._entries) > self._capacity:
            self._entries.popitem(last=False)

    def __contains__(self, key: K) -> bool:
        return key in self._entries

    def get(self, key: K) -> V | None:
        """The entry, if it is still remembered."""
        return self._entries.get(key)
