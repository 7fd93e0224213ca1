"""How long a tenant's recent answers were: the strongest feature of output length, and free."""

from __future__ import annotations

from array import array
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Hashable

WINDOWS = (20, 200, 1000)
"""Answers of a tenant and model that quantiles are taken of: the last few follow what changes, the last
thousand say most where nothing does."""
MODEL_WINDOW = 1000
MOST_TENANTS = 10_000
MOST_MODELS = 1_000
MOST_TOKENS = 2**31 - 1

HISTORY_WIDTH = 2 * len(WINDOWS) + 1

_UNKNOWN = (0.0,) * HISTORY_WIDTH


class RollingQuantiles:
    """Quantiles of the last values, over several windows at once.

    Memory is eight bytes a value and window; a value costs a few microseconds.
    """

    __slots__ = ("_next", "_ring", "_sorted", "_windows", "count")

    def __init__(self, windows: tuple[int, ...]) -> None:
        self._windows = windows
        self._ring = array("i")
        self._next = 0
        self._sorted = [array("i") for _ in windows]
        self.count = 0
        """Values remembered: at most the largest window."""

    def add(self, value: int) -> None:
        """Remember a value, forgetting the oldest of every full window."""
        ring, size = self._ring, max(self._windows)
        for window, values in zip(self._windows, self._sorted, strict=True):
            if len(values) == window:
                del values[bisect_left(values, ring[self._next - window])]
            insort(values, value)
        if len(ring) < size:
            # `_next` stays 0 until the ring is full: counting from the end then finds the oldest.
            ring.append(value)
        else:
            ring[self._next] = value
            self._next = (self._next + 1) % size
        self.count = len(ring)

    def quantile(self, window: int, level: float) -> float:
        """Of the window at this position; linearly interpolated (`numpy.quantile`'s default). 0 without
        any value."""
        values = self._sorted[window]
        if not values:
            return 0.0
        position = level * (len(values) - 1)
        low = int(position)
        high = min(low + 1, len(values) - 1)
        return values[low] + (position - low) * (values[high] - values[low])


class TenantHistory:
    """Recent output lengths per (tenant, model), and per model for tenants nobody knows.

    Memory is bounded: the most recently active are remembered. Not thread-safe.
    """

    def __init__(self, *, most_tenants: int = MOST_TENANTS) -> None:
        self._tenants: _Remembered = _Remembered(most_tenants, WINDOWS)
        self._models: _Remembered = _Remembered(MOST_MODELS, (MODEL_WINDOW,))

    def __len__(self) -> int:
        return len(self._tenants)

    def observe(self, tenant: Hashable, model: Hashable, output_tokens: int) -> None:
        """An answer of this tenant ended well, with so many tokens."""
        if output_tokens >= 1:
            tokens = min(output_tokens, MOST_TOKENS)
            self._tenants.add((tenant, model), tokens)
            self._models.add(model, tokens)

    def features(self, tenant: Hashable, model: Hashable) -> tuple[float, ...]:
        """p50 and p90 of output tokens over the last 200, 20 and 1000 answers, and how many there are.

        Of a tenant without any: those of the model's last answers, whoever asked, and 0 answers. Zeros
        where the model has none.
        """
        known = self._tenants.get((tenant, model))
        if known is not None:
            quantile = known.quantile
            return (
                quantile(1, 0.5),
                quantile(1, 0.9),
                quantile(0, 0.5),
                quantile(0, 0.9),
                quantile(2, 0.5),
                quantile(2, 0.9),
                float(known.count),
            )
        others = self._models.get(model)
        if others is None:
            return _UNKNOWN
        return (*(others.quantile(0, 0.5), others.quantile(0, 0.9)) * len(WINDOWS), 0.0)


class _Remembered(OrderedDict[Hashable, RollingQuantiles]):
    """The `most` keys that were added to last."""

    def __init__(self, most: int, windows: tuple[int, ...]) -> None:
        super().__init__()
        self._most = most
        self._windows = windows

    def add(self, key: Hashable, value: int) -> None:
        known = self.get(key)
        if known is None:
            known = self[key] = RollingQuantiles(self._windows)
            if len(self) > self._most:
                self.popitem(last=False)
        else:
            self.move_to_end(key)
        known.add(value)
