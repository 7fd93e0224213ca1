"""Where recent requests went, and where they would have gone in fairness."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import REPLICA_INDEX

_DECODE_BASE = REPLICA_INDEX["decode_base_s"]
_PREFILL_TOKEN = REPLICA_INDEX["prefill_token_s"]
_LEAST = np.float32(1e-12)


class ShareWindow:
    """How often each replica was chosen among the last `size` decisions."""

    def __init__(self, size: int) -> None:
        # Lists: one number in, one number out is what arrays are slow at.
        self._ring = [-1] * size
        self._next = 0
        self._counts: list[int] = []
        self.filled = 0

    def record(self, choice: int, replicas: int) -> None:
        """One more decision; the memory starts anew when the number of replicas changes."""
        if len(self._counts) != replicas:
            self._ring = [-1] * len(self._ring)
            self._counts = [0] * replicas
            self.filled = 0
        oldest = self._ring[self._next]
        if oldest >= 0:
            self._counts[oldest] -= 1
        else:
            self.filled += 1
        self._ring[self._next] = choice
        self._counts[choice] += 1
        self._next = (self._next + 1) % len(self._ring)

    def share(self, replica: int) -> float:
        """Share of the remembered decisions that chose a replica; 0 before the first."""
        if not self.filled or replica >= len(self._counts):
            return 0.0
        return self._counts[replica] / self.filled


def fair_share(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Share of the candidates' capacity that each has, (n,).

    Capacity is the geometric mean of prefill and decode speed.

    Args:
        rows: (n, len(REPLICA_FEATURES)), of whom the mask allows.
    """
    cost = rows[:, _PREFILL_TOKEN] * rows[:, _DECODE_BASE]
    speed = 1.0 / np.sqrt(np.maximum(cost, _LEAST))
    share: NDArray[np.float32] = speed / speed.sum()
    return share
