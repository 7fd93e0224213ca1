"""The engine's clock: wall time at a rate that can be changed and stopped."""

from __future__ import annotations

import math


class EngineClock:
    """Maps wall seconds to engine seconds. Both start at zero together."""

    def __init__(self, wall_s: float, rate: float) -> None:
        """`rate`: engine seconds per wall second; 0 stands still."""
        self._wall_s = wall_s
        self._engine_s = 0.0
        self._rate = rate

    @property
    def rate(self) -> float:
        """Engine seconds per wall second."""
        return self._rate

    def engine_s(self, wall_s: float) -> float:
        """Engine time at a wall time not before the last change of rate."""
        return self._engine_s + (wall_s - self._wall_s) * self._rate

    def wall_s(self, engine_s: float) -> float:
        """When the engine reaches a time, if the rate stays; infinite while it stands still."""
        if self._rate == 0.0 or engine_s == math.inf:
            return math.inf
        return self._wall_s + (engine_s - self._engine_s) / self._rate

    def set_rate(self, wall_s: float, rate: float) -> None:
        """Go on from here at another rate."""
        self._engine_s = self.engine_s(wall_s)
        self._wall_s = wall_s
        self._rate = rate
