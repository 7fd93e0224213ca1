"""Latencies in buckets whose width is a share of their value: small enough to be sent around."""

from __future__ import annotations

import math
from collections.abc import Mapping

_LEAST_S = 1e-3
_LOG_WIDTH = math.log(1.04)
_MOST = 400
"""Buckets; the last one ends at 6 500 s."""


def bucket(seconds: float) -> int:
    """Where a latency belongs."""
    if seconds <= _LEAST_S:
        return 0
    return min(int(math.log(seconds / _LEAST_S) / _LOG_WIDTH) + 1, _MOST)


def upper_s(index: int) -> float:
    """Upper end of a bucket, in seconds."""
    return _LEAST_S * math.exp(_LOG_WIDTH * index)


def quantile_s(counts: Mapping[int, int], level: float) -> float:
    """Upper end of the bucket that holds this quantile: at most 4 % too high. NaN of nothing."""
    total = sum(counts.values())
    if not total:
        return math.nan
    left = level * total
    for index in sorted(counts):
        left -= counts[index]
        if left <= 1e-9:
            return upper_s(index)
    return upper_s(max(counts))
