"""Prometheus metrics with labels, whose children are found at once.

`labels` of the client library checks, converts and locks each time: a microsecond, and a request moves
a dozen metrics. Here the names that were asked for before lead to the child directly.
"""

from __future__ import annotations

from typing import Any

from prometheus_client import Counter, Histogram


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
    """A counter."""


class LabelledHistogram(_Remembering, Histogram):
    """A histogram."""
