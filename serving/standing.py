"""How a replica stands with the router: what there is beside being healthy or not.

All of it is data; `Breaker` counts failures, `OutlierWatch` judges delays, `serving/trust.py` tells who
is avoided for it.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

from steersman.serving.breaker import Breaker

MOST_ANSWERS = 64
"""Remembered of one replica."""


class Delays:
    """How long the first tokens of one replica take against what the analytic model expects there.

    What still waits, and is late already, counts with the time it has waited: a replica that has stopped
    answering would otherwise look as good as it was.
    """

    def __init__(self) -> None:
        self._answers: deque[tuple[float, float, float]] = deque(maxlen=MOST_ANSWERS)
        """(when, actual over expected, actual in seconds)."""
        self._awaited: dict[object, tuple[float, float]] = {}
        """(since when, expected in seconds)."""

    def await_answer(self, token: object, now_s: float, expected_s: float) -> None:
        """A request was sent; `token` is its own."""
        if expected_s > 0.0:
            self._awaited[token] = (now_s, expected_s)

    def answered(self, token: object, now_s: float) -> None:
        """Its first token is here."""
        known = self._awaited.pop(token, None)
        if known is not None and now_s > known[0]:
            ttft_s = now_s - known[0]
            self._answers.append((now_s, ttft_s / known[1], ttft_s))

    def forget(self, token: object) -> None:
        """There will be none."""
        self._awaited.pop(token, None)

    def clear(self) -> None:
        """Forget the answers: it is given another chance."""
        self._answers.clear()

    def recent(self, now_s: float, window_s: float, late: float) -> tuple[int, float, float]:
        """Count, median of actual over expected, and median in seconds, of the last `window_s`.

        Args:
            now_s: now.
            window_s: in seconds.
            late: ratio from which on what still waits counts.
        """
        ratios: list[float] = []
        times_s: list[float] = []
        for at_s, ratio, ttft_s in self._answers:
            if at_s >= now_s - window_s:
                ratios.append(ratio)
                times_s.append(ttft_s)
        for since_s, expected_s in self._awaited.values():
            waited_s = now_s - since_s
            if waited_s >= late * expected_s:
                ratios.append(waited_s / expected_s)
                times_s.append(waited_s)
        if not ratios:
            return 0, math.nan, math.nan
        return len(ratios), median(ratios), median(times_s)


class Standing:
    """Of one replica."""

    __slots__ = ("breaker", "delays", "ejected_until_s", "ejections", "warming_since_s")

    def __init__(self, breaker: Breaker) -> None:
        self.breaker = breaker
        self.delays = Delays()
        self.ejected_until_s = -math.inf
        """As an outlier."""
        self.ejections = 0
        """As an outlier, in a row."""
        self.warming_since_s = -math.inf
        """When it came, or came back; may lie ahead, where its return is known."""

    def is_ejected(self, now_s: float) -> bool:
        """As an outlier."""
        return now_s < self.ejected_until_s

    def warm_up(self, from_s: float) -> None:
        """It gets its share little by little."""
        self.warming_since_s = max(self.warming_since_s, from_s)
