"""How long a tenant's recent answers were: the strongest feature of output length, and free.

`TenantHistory` follows a live service; `causal_quantiles` gives the same for every row of a trace, using
only what a service would have known at that moment.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict, deque

import numpy as np
from numpy.typing import NDArray

from steersman.traces.trace import Trace

WINDOW = 200
"""Answers remembered per tenant and model."""
MOST_TENANTS = 10_000

NOMINAL_TTFT_S = 0.5
NOMINAL_TPOT_S = 0.03
"""A trace does not say when an answer ended; it is taken to end after these, times its tokens."""


class RollingQuantiles:
    """Quantiles of the last `window` values. O(window) memory, microseconds per value."""

    __slots__ = ("_arrived", "_sorted", "_window")

    def __init__(self, window: int = WINDOW) -> None:
        self._window = window
        self._arrived: deque[float] = deque()
        self._sorted: list[float] = []

    def __len__(self) -> int:
        return len(self._arrived)

    def add(self, value: float) -> None:
        """Remember a value, forgetting the oldest if there are too many."""
        if len(self._arrived) == self._window:
            oldest = self._arrived.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._arrived.append(value)
        insort(self._sorted, value)

    def quantile(self, level: float) -> float:
        """Linearly interpolated (`numpy.quantile`'s default); 0 without any value."""
        values = self._sorted
        if not values:
            return 0.0
        position = level * (len(values) - 1)
        low = int(position)
        high = min(low + 1, len(values) - 1)
        return values[low] + (position - low) * (values[high] - values[low])


class TenantHistory:
    """Recent output lengths per (tenant, model). Not thread-safe.

    Memory is bounded: `window` numbers each for the `most_tenants` most recently active.
    """

    def __init__(self, *, window: int = WINDOW, most_tenants: int = MOST_TENANTS) -> None:
        self._window = window
        self._most_tenants = most_tenants
        self._tenants: OrderedDict[tuple[str, str], RollingQuantiles] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tenants)

    def observe(self, tenant: str, model: str, output_tokens: int) -> None:
        """An answer of this tenant ended well, with so many tokens."""
        if output_tokens < 1:
            return
        key = (tenant, model)
        known = self._tenants.get(key)
        if known is None:
            known = self._tenants[key] = RollingQuantiles(self._window)
            if len(self._tenants) > self._most_tenants:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(key)
        known.add(float(output_tokens))

    def quantiles(self, tenant: str, model: str) -> tuple[float, float]:
        """The tenant's p50 and p90 of recent output tokens; zeros without history."""
        known = self._tenants.get((tenant, model))
        return (0.0, 0.0) if known is None else (known.quantile(0.5), known.quantile(0.9))


def causal_quantiles(trace: Trace, *, window: int = WINDOW) -> NDArray[np.float64]:
    """What `TenantHistory` would have said at each arrival of a trace, (len(trace), 2): p50 and p90.

    Row i uses only requests that had ended by then, in the order in which they ended. A trace does not
    tell when: each is taken to end `NOMINAL_TTFT_S + output_tokens * NOMINAL_TPOT_S` after it arrived.
    Rows of unknown output length are never observed. O(n log n).
    """
    quantiles = np.zeros((len(trace), 2))
    keys = (trace.tenant.astype(np.int64) * (len(trace.models) + 1) + trace.model).tolist()
    outputs = trace.output_tokens.tolist()
    histories: dict[int, RollingQuantiles] = {}
    running: list[tuple[float, int]] = []
    for row, arrival_s in enumerate(trace.arrival_s.tolist()):
        while running and running[0][0] <= arrival_s:
            _, ended = heapq.heappop(running)
            histories.setdefault(keys[ended], RollingQuantiles(window)).add(float(outputs[ended]))
        known = histories.get(keys[row])
        if known is not None:
            quantiles[row] = known.quantile(0.5), known.quantile(0.9)
        if outputs[row] >= 1:
            end_s = arrival_s + NOMINAL_TTFT_S + outputs[row] * NOMINAL_TPOT_S
            heapq.heappush(running, (end_s, row))
    return quantiles
