"""Whether a replica gives any sign of life.

A replica that is frozen (a machine that swaps, a driver that hangs, a network that drops packets) still
takes connections, so nothing fails: requests only wait. What tells it from one that is merely busy is
that *nothing* comes from it, neither an answer to a scrape or a check, which cost it little, nor another
piece of any stream, while others answer as ever.
"""

from __future__ import annotations

import math


class Pulse:
    """Of one replica; times are of the router's clock, in seconds."""

    __slots__ = ("heard_s", "unanswered_since_s")

    def __init__(self) -> None:
        self.heard_s = -math.inf
        """When anything last came from it."""
        self.unanswered_since_s = math.inf
        """When it was first asked something easy (a scrape, a check) since then."""

    def asked(self, now_s: float) -> None:
        """Something was asked that every server answers at once."""
        if self.unanswered_since_s == math.inf:
            self.unanswered_since_s = now_s

    def heard(self, now_s: float) -> None:
        """It sent something, whatever it was."""
        self.heard_s = now_s
        self.unanswered_since_s = math.inf

    def silence_s(self, now_s: float) -> float:
        """For how long it has owed an answer and sent nothing at all; 0 if it owes none."""
        return max(now_s - self.unanswered_since_s, 0.0)
