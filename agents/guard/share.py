"""Where recent requests went, and where they would have gone in fairness."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

_DECODE_BASE = REPLICA_INDEX["decode_base_s"]
_PREFILL_TOKEN = REPLICA_INDEX["prefill_token_s"]


class ShareWindow:
    """How often each replica was chosen among the last `size` decisions."""

    def __init__(self, size: int) -> None:
        self._ring: NDArray[np.int64] = np.full(size, -1, dtype=np.int64)
        self._next = 0
        self.counts: NDArray[np.int64] = np.zeros(0, dtype=np.int64)
        self.filled = 0

    def record(self, choice: int, replicas: int) -> None:
        """One more decision; the memory starts anew when the number of replicas changes."""
        if len(self.counts) != replicas:
            self._ring.fill(-1)
            self.counts = np.zeros(replicas, dtype=np.int64)
            self.filled = 0
        oldest = int(self._ring[self._next])
        if oldest >= 0:
            self.counts[oldest] -= 1
        else:
            self.filled += 1
        self._ring[self._next] = choice
        self.counts[choice] += 1
        self._next = (self._next + 1) % len(self._ring)

    def share(self, replica: int) -> float:
        """Share of the remembered decisions that chose a replica; 0 before the first."""
        if not self.filled or replica >= len(self.counts):
            return 0.0
        return float(self.counts[replica]) / self.filled


def fair_share(observation: Observation) -> NDArray[np.float32]:
    """Share of the allowed candidates' capacity that each has, (n,); 0 where not allowed.

    Capacity is the geometric mean of prefill and decode speed.
    """
    cost = observation.replicas[:, _PREFILL_TOKEN] * observation.replicas[:, _DECODE_BASE]
    speed = np.where(observation.mask, 1.0 / np.sqrt(np.maximum(cost, 1e-12)), 0.0)
    share: NDArray[np.float32] = (speed / speed.sum()).astype(np.float32)
    return share
