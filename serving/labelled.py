"""Prometheus metrics that are moved from the event loop alone, and whose children are found at once.

Those of the client library may be moved from any thread, so that each step takes a lock, checks what
cannot be otherwise here, and `labels` converts its values again each time: a microsecond or two, and a
request moves two dozen. Here the labels that were asked for before lead to the child directly, and a
child adds up plain numbers.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from typing import Any

from prometheus_client import Counter, Gauge, Histogram


class _Number:
    """What the library's metrics keep a number in, without the lock."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 0.0

    def get(self) -> float:
        return self.value

    def set(self, value: float) -> None:
        self.value = value

    def inc(self, amount: float) -> None:
        self.value += amount

    def get_exemplar(self) -> None:
        """There are none."""


class _Remembering:
    """For a metric class to follow. Labels are given in their order, as text."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._found: dict[tuple[object, ...], Any] = {}

    def labels(self, *values: object, **named: object) -> Any:
        """The child with these labels, made if there is none."""
        child = self._found.get(values)
        if child is None:
            child = super().labels(*values, **named)  # type: ignore[misc]
            if not named:
                self._found[values] = child
        return child

    def remove(self, *values: Any) -> None:
        """Forget one child."""
        self._found.pop(values, None)
        super().remove(*values)  # type: ignore[misc]

    def remove_by_labels(self, labels: dict[str, str]) -> None:
        """Forget all children that have these."""
        self._found.clear()
        super().remove_by_labels(labels)  # type: ignore[misc]

    def clear(self) -> None:
        """Forget all children."""
        self._found.clear()
        super().clear()  # type: ignore[misc]


class LabelledCounter(_Remembering, Counter):
    """A counter, with labels or without."""

    def _metric_init(self) -> None:
        self._value: Any = _Number()
        self._created = time.time()

    def inc(self, amount: float = 1.0, exemplar: Any = None) -> None:  # noqa: ARG002
        """Count; the amount is not negative."""
        self._value.value += amount


class LabelledGauge(_Remembering, Gauge):
    """A gauge, with labels or without."""

    def _metric_init(self) -> None:
        self._value: Any = _Number()

    def inc(self, amount: float = 1.0) -> None:
        """One more."""
        self._value.value += amount

    def dec(self, amount: float = 1.0) -> None:
        """One less."""
        self._value.value -= amount


class LabelledHistogram(_Remembering, Histogram):
    """A histogram, with labels or without."""

    def _metric_init(self) -> None:
        self._created = time.time()
        self._sum: Any = _Number()
        self._buckets: Any = [_Number() for _ in self._upper_bounds]

    def observe(self, amount: float, exemplar: Any = None) -> None:  # noqa: ARG002
        """Count a number, which is not NaN."""
        self._sum.value += amount
        self._buckets[bisect_left(self._upper_bounds, amount)].value += 1.0
