"""Every outcome of a canary, told to the tally once: at its end, or as soon as it is known to be bad.

A request that still has no first token after the champion's p99 is above it, whenever the token comes:
a challenger whose requests hang is not protected by their hanging.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from dataclasses import dataclass, field

from steersman.serving.canary.tally import E2E, ERRORS, GUARDS, MISSED, TTFT, Lot, Tally
from steersman.serving.exchange import Exchange
from steersman.traces.schema import Outcome, Status

MOST_UNITS = 100_000
"""Units that fared badly are remembered, the newest of them, for each guard."""


@dataclass(slots=True, eq=False)
class Watched:
    """A request on its way."""

    exchange: Exchange
    arm: str
    unit: str
    """What it was given to its arm with."""
    lasting: bool
    """Whether more requests than this one are of the unit."""
    lot: Lot | None
    counts: bool
    """Not in the washout of a switchback."""
    ttft_slo_s: float = math.inf
    """Its objectives; infinite, or NaN, for none."""
    tpot_slo_s: float = math.inf
    late: set[str] = field(default_factory=set)
    """Guards that know already."""


class Watching:
    """What is on its way, and what came of the rest. Constant work per request."""

    def __init__(self) -> None:
        self.tally = Tally()
        """Since it was last taken."""
        self._on_the_way: dict[int, Watched] = {}
        self._bad: dict[str, OrderedDict[str, None]] = {guard: OrderedDict() for guard in GUARDS}

    def restart(self) -> None:
        """Another canary begins; what is on its way is of the last one."""
        self.tally = Tally()
        self._on_the_way.clear()
        for units in self._bad.values():
            units.clear()

    def take(self) -> Tally:
        """What has been seen since this was last asked."""
        tally, self.tally = self.tally, Tally()
        return tally

    def begin(self, watched: Watched) -> None:
        """It is on its way."""
        self._on_the_way[id(watched.exchange)] = watched

    def end(
        self, exchange: Exchange, outcome: Outcome, limits_s: dict[str, float], *, faulty: bool
    ) -> tuple[str, bool] | None:
        """It is over.

        Returns:
            Its arm, and whether it failed; None if it says nothing.
        """
        watched = self._on_the_way.pop(id(exchange), None)
        if watched is None:
            return None
        failed = failure(exchange, outcome.status)
        if failed is None and not faulty:
            return None
        bad = bool(failed) or faulty
        self._tell(watched, ERRORS, bad=bad)
        self.tally.see(watched.arm, ERRORS, bad=bad)
        missed = outcome.ttft_s > watched.ttft_slo_s or outcome.tpot_s > watched.tpot_slo_s
        if failed or math.isfinite(outcome.ttft_s):  # of an answer in one piece neither is known
            self._objectives(watched, missed=bool(failed) or missed)
        if not failed:
            for guard, seconds in ((TTFT, outcome.ttft_s), (E2E, outcome.e2e_s)):
                if math.isfinite(seconds):
                    self.tally.measure(watched.arm, guard, seconds)
                    self._compare(watched, guard, seconds, limits_s)
        return watched.arm, bad

    def look(self, now_s: float, limits_s: dict[str, float]) -> None:
        """Who is late by now?"""
        for watched in self._on_the_way.values():
            exchange = watched.exchange
            age_s = now_s - exchange.intake.arrival_s
            streams = exchange.prepared.request.stream and exchange.first_token_s is None
            if streams and age_s > limits_s.get(TTFT, math.inf):
                self._late(watched, TTFT)
            if streams and age_s > watched.ttft_slo_s:
                self._objectives(watched, missed=True)
            if age_s > limits_s.get(E2E, math.inf):
                self._late(watched, E2E)

    def _late(self, watched: Watched, guard: str) -> None:
        if guard not in watched.late:
            self._tell(watched, guard, bad=True)
            watched.late.add(guard)

    def _objectives(self, watched: Watched, *, missed: bool) -> None:
        """Once: a missed one is known before the request ends."""
        if MISSED not in watched.late:
            watched.late.add(MISSED)
            self._tell(watched, MISSED, bad=missed)
            self.tally.see(watched.arm, MISSED, bad=missed)

    def _compare(self, watched: Watched, guard: str, seconds: float, limits_s: dict[str, float]) -> None:
        limit_s = limits_s.get(guard)
        if limit_s is not None and guard not in watched.late:
            self._tell(watched, guard, bad=seconds > limit_s)

    def _tell(self, watched: Watched, guard: str, *, bad: bool) -> None:
        """To the tests: a unit fares badly once. What its further requests do is not independent of
        that, and would count one broken session a hundred times."""
        if not watched.counts:
            return
        if watched.lasting:
            units = self._bad[guard]
            if watched.unit in units:
                return
            if bad:
                units[watched.unit] = None
                if len(units) > MOST_UNITS:
                    units.popitem(last=False)
        self.tally.judge(watched.arm, guard, bad=bad, lot=watched.lot)


def failure(exchange: Exchange, status: Status) -> bool | None:
    """Whether a request failed; None if the client is why it ended as it did."""
    if status is Status.OK:
        return False
    if status is Status.FAILED:
        return True
    # Nobody to serve it counts; a client that is gone, or is told that it is wrong, does not.
    if status is Status.REJECTED and (exchange.http_status >= 500 or not exchange.http_status):
        return True
    return None
