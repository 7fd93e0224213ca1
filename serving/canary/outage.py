"""The fast rule: a challenger that fails outright is stopped with the outcome that shows it."""

from __future__ import annotations

import math
from collections import deque

from steersman.serving.canary.settings import OutageSettings
from steersman.serving.canary.tally import CHALLENGER

LEAST_FACTOR = 3.0
"""The challenger has to fail so many times more often than the champion: else it is the replicas."""


class Outage:
    """Looks at the newest outcomes of both arms; of one router.

    No test: with the usual settings five of ten have to fail, which at an error rate of 1 % happens once
    in 40 million looks.
    """

    def __init__(self, settings: OutageSettings) -> None:
        self.settings = settings
        self._newest: deque[tuple[float, bool]] = deque(maxlen=settings.requests)
        self._champion: deque[tuple[float, bool]] = deque(maxlen=10 * settings.requests)

    def observe(self, arm: str, now_s: float, *, failed: bool, usual: float) -> str:
        """An outcome.

        Args:
            arm: whose.
            now_s: on any clock.
            failed: whether it failed.
            usual: the champion's error rate so far; NaN if not known.

        Returns:
            Why to stop the challenger; empty if there is no reason.
        """
        newest = self._newest if arm == CHALLENGER else self._champion
        newest.append((now_s, failed))
        if arm != CHALLENGER or not failed or len(newest) < self.settings.requests:
            return ""
        if now_s - newest[0][0] > self.settings.window_s:
            return ""
        share = sum(bad for _, bad in newest) / len(newest)
        lately = [bad for at_s, bad in self._champion if now_s - at_s <= self.settings.window_s]
        now = sum(lately) / len(lately) if lately else 0.0
        champion = now if math.isnan(usual) else max(now, usual)
        if share < self.settings.share or share < LEAST_FACTOR * champion:
            return ""
        return (
            f"outage: {sum(bad for _, bad in newest)} of its last {len(newest)} requests failed, "
            f"{100.0 * champion:.1f} % of the champion's"
        )
