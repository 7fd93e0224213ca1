"""How often the guard tripped, and whether the learned policy may serve."""

from __future__ import annotations

from collections import deque
from enum import Enum


class LatchState(Enum):
    """Where a latch stands."""

    OPEN = "open"
    """The learned policy serves."""
    HOLDING = "holding"
    """Tripped too often: the fallback serves, and the learned policy is not even asked."""
    PROBING = "probing"
    """Held long enough: the fallback still serves, and the learned policy's answers are watched."""


class Latch:
    """Closes after repeated trips, and opens again only after a rest and a run of sound answers.

    OPEN → HOLDING when `trips` of the last `window` answers tripped; HOLDING → PROBING after `hold_s`;
    PROBING → OPEN after `clean` sound answers in a row, or back to HOLDING at the first trip.
    """

    def __init__(self, *, trips: int, window: int, hold_s: float, clean: int) -> None:
        self._trips = trips
        self._hold_s = hold_s
        self._clean = clean
        self._recent: deque[bool] = deque(maxlen=window)
        self._tripped = 0
        self._sound = 0
        self._since_s = 0.0
        self.state = LatchState.OPEN
        self.closings = 0
        """How often it has closed."""

    def refresh(self, now_s: float) -> LatchState:
        """The state at a time: a hold that has lasted long enough becomes a probe."""
        if self.state is LatchState.HOLDING and now_s - self._since_s >= self._hold_s:
            self.state = LatchState.PROBING
            self._sound = 0
        return self.state

    def record(self, now_s: float, *, tripped: bool) -> None:
        """The learned policy answered, soundly or not."""
        if self.state is LatchState.PROBING:
            self._sound += 1
            if tripped:
                self._hold(now_s)
            elif self._sound >= self._clean:
                self.state = LatchState.OPEN
            return
        if len(self._recent) == self._recent.maxlen:
            self._tripped -= self._recent[0]
        self._recent.append(tripped)
        self._tripped += tripped
        if self._tripped >= self._trips:
            self.closings += 1
            self._hold(now_s)

    def _hold(self, now_s: float) -> None:
        self.state = LatchState.HOLDING
        self._since_s = now_s
        self._recent.clear()
        self._tripped = 0
