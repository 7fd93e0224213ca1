"""The circuit breaker of one replica (SPEC D2): the counting and the states, without any I/O.

Closed until more than a share of the answers in a sliding window are failures; then open, and nobody is
sent there; after a pause half open: a few requests are let through. If all of these are answered it
closes, and if one fails it opens again, for twice as long. Errors of the client count neither way.

Health checks notice a replica that is dead. This notices one that lives, and fails every tenth request.
"""

from __future__ import annotations

import math
from enum import StrEnum

from steersman.serving.trust_settings import BreakerSettings

_PARTS = 10
"""The window moves on in so many steps."""


class Circuit(StrEnum):
    """In words for people."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half-open"


class ErrorWindow:
    """Answers and failures of the last `window_s` seconds, to a tenth of them."""

    def __init__(self) -> None:
        self._passed = [0] * _PARTS
        self._failed = [0] * _PARTS
        self._at = -1

    def add(self, now_s: float, window_s: float, *, failed: bool) -> None:
        """One more."""
        self._move(now_s, window_s)
        (self._failed if failed else self._passed)[self._at % _PARTS] += 1

    def counts(self, now_s: float, window_s: float) -> tuple[int, int]:
        """(all, failed)."""
        self._move(now_s, window_s)
        failed = sum(self._failed)
        return sum(self._passed) + failed, failed

    def clear(self) -> None:
        """Forget."""
        self._passed = [0] * _PARTS
        self._failed = [0] * _PARTS

    def _move(self, now_s: float, window_s: float) -> None:
        at = math.floor(now_s * _PARTS / window_s)
        if abs(at - self._at) >= _PARTS:  # nothing for a whole window, or another window's length
            self.clear()
            self._at = at
        while self._at < at:
            self._at += 1
            self._passed[self._at % _PARTS] = self._failed[self._at % _PARTS] = 0


class Breaker:
    """Of one replica. Times are of the router's clock, in seconds."""

    def __init__(self, settings: BreakerSettings) -> None:
        self.settings = settings
        """May be replaced at any time."""
        self._window = ErrorWindow()
        self._open_until_s: float | None = None
        """None while it is closed."""
        self._times = 0
        """How often it has opened without having closed."""
        self._probing = 0
        self._answered = 0

    def state(self, now_s: float) -> Circuit:
        """Where it stands."""
        if self._open_until_s is None:
            return Circuit.CLOSED
        return Circuit.OPEN if now_s < self._open_until_s else Circuit.HALF_OPEN

    def admits(self, now_s: float) -> bool:
        """Whether one more request may go there."""
        if self._open_until_s is None:
            return True
        return now_s >= self._open_until_s and self._probing < self.settings.probes

    def enter(self, now_s: float) -> bool:
        """A request goes there; returns whether it is a probe, which has to `leave` in the end."""
        if self.state(now_s) is not Circuit.HALF_OPEN:
            return False
        self._probing += 1
        return True

    def leave(self) -> None:
        """A probe is over, one way or the other."""
        self._probing -= 1

    def passed(self, now_s: float) -> bool:
        """A request was answered; returns whether that closed it.

        What was sent before it opened counts as well: a long stream that ends well says as much.
        """
        state = self.state(now_s)
        if state is Circuit.CLOSED:
            self._window.add(now_s, self.settings.window_s, failed=False)
        elif state is Circuit.HALF_OPEN:
            self._answered += 1
            if self._answered >= self.settings.probes:
                self._open_until_s, self._times = None, 0
                self._window.clear()
                return True
        return False

    def failed(self, now_s: float, *, may_open: bool = True) -> bool:
        """A request failed; returns whether that opened it.

        Args:
            now_s: when.
            may_open: false while too many of its peers are out already. It goes on counting.
        """
        state = self.state(now_s)
        if state is Circuit.OPEN:
            return False
        if state is Circuit.HALF_OPEN:
            return self._open(now_s)
        settings = self.settings
        self._window.add(now_s, settings.window_s, failed=True)
        total, failed = self._window.counts(now_s, settings.window_s)
        if may_open and total >= settings.min_requests and failed > settings.error_rate * total:
            return self._open(now_s)
        return False

    def _open(self, now_s: float) -> bool:
        settings = self.settings
        pause_s = min(
            settings.open_s * 2.0 ** min(self._times, 32), max(settings.max_open_s, settings.open_s)
        )
        self._open_until_s = now_s + pause_s
        self._times += 1
        self._answered = 0
        return True
