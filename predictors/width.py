"""How wide p90 has to be so that nine in ten outcomes stay within it, learned while serving (SPEC A6).

A model knows how wide its errors were on what it was fitted on; later traffic, other hardware and queues
that nobody foresaw make them wider or narrower. So each model and target has a log factor w on its
spread, which every outcome moves a little::

    p90 = p50 * max(model's p90 / p50, LEAST_RATIO) ** exp(w)
    w  <- w + step * (outside - (1 - LEVEL))       outside: 1 if the outcome is above p90 with this w
    step = max(STEP, FIRST_STEP * min(1, FIRST_OUTCOMES / n))                of the n-th outcome

That is adaptive conformal inference (Gibbs and Candès, "Adaptive conformal inference under distribution
shift", 2021), following the quantile of the scores log(log(actual / p50) / log(p90 / p50)) itself (the
quantile tracking of Angelopoulos, Candès and Tibshirani, "Conformal PID control for time series
prediction", 2023), with larger steps at first. Of n outcomes, each compared when it becomes known, the
share outside is within `2 * LIMIT / (STEP * n)` of 1 - LEVEL, whatever they are, while w is within its
bounds.

Outcomes come late, and the worst come last: a TTFT that is long is not known for long, and where a
queue grows the quick first tokens would keep p90 narrow. But that a TTFT is above p90 is known as soon
as that time has passed: then it counts, once.

Those expected to wait longer than `QUEUED_S` for their first token have a factor of their own, at least
as large as the others': the few that queue are wrong in another way than the many that do not. So where
the model's p50 and spread do not fall as the queue grows, neither does p90. Finer bins bought nothing.
"""

from __future__ import annotations

import heapq
import math
from itertools import count

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.latency import MOST_S

LEVEL = 0.9
STEP = 0.02
"""In runs of 5 000 requests steps from 0.01 to 0.03 are equal within 0.01 of the share; larger ones make
p90 jump, and it is too narrow for longer than it is too wide."""
FIRST_STEP, FIRST_OUTCOMES = 0.05, 200
"""Quicker at first: a spread that is twice too wide would else be so for 350 outcomes."""
LIMIT = 3.0
"""Bound on |w|: a spread of a twentieth, or twenty times as wide."""
LEAST_RATIO = 1.01
"""Of p90 to p50: a model that is sure of itself can be wrong too."""
QUEUED_S = 1.0
SPARE = 64
"""Attempts whose first token is known may wait for their deadline, beyond half of all that wait."""


class Width:
    """One log factor, and what moves it.

    Args:
        least: another that it is never below.
    """

    __slots__ = ("_least", "_log", "_outcomes")

    def __init__(self, least: Width | None = None) -> None:
        self._least = least
        self._log = 0.0
        self._outcomes = 0

    @property
    def log(self) -> float:
        """w: 0 leaves the model's spread as it is."""
        return self._log if self._least is None else max(self._log, self._least.log)

    def p90_s(self, p50_s: float, p90_s: float) -> float:
        """A model's p90 at the present width; never below p50, at most `MOST_S`."""
        spread = math.log(max(p90_s / p50_s, LEAST_RATIO)) * math.exp(self.log)
        return max(min(p50_s * math.exp(min(spread, 50.0)), MOST_S), p50_s)

    def learn(self, p50_s: float, p90_s: float, actual_s: float) -> None:
        """An outcome, and what the model had said of it."""
        self.count(outside=actual_s > self.p90_s(p50_s, p90_s))

    def count(self, *, outside: bool) -> float:
        """An outcome above p90, or not; returns by how much w moved."""
        self._outcomes += 1
        step = max(STEP, FIRST_STEP * min(1.0, FIRST_OUTCOMES / self._outcomes))
        before = self.log
        self.move(step * LEVEL if outside else -step * (1.0 - LEVEL))
        return self.log - before

    def move(self, change: float) -> None:
        """Change w, within its bounds."""
        self._log = min(max(self.log + change, -LIMIT), LIMIT)


class Widths:
    """Of TTFT and TPOT of one model. Never learns from what is not known yet at `now_s`."""

    def __init__(self) -> None:
        self.ttft = Width()
        self.ttft_queued = Width(least=self.ttft)
        self.tpot = Width()
        self._waiting: list[tuple[float, int, Awaited]] = []
        self._numbers = count()
        self._known = 0

    def __len__(self) -> int:
        """Attempts that are kept in memory."""
        return len(self._waiting)

    def of_ttft(self, p50_s: float) -> Width:
        """The factor for a TTFT of this median."""
        return self.ttft_queued if p50_s >= QUEUED_S else self.ttft

    def apply(self, now_s: float, modelled: NDArray[np.float64]) -> NDArray[np.float64]:
        """A model's prediction as it is served now: (4,), in the order of `LATENCY_OUTPUTS`."""
        self._count_overdue(now_s)
        ttft_p50, ttft_p90, tpot_p50, tpot_p90 = modelled.tolist()
        served = modelled.copy()
        served[1] = self.of_ttft(ttft_p50).p90_s(ttft_p50, ttft_p90)
        served[3] = self.tpot.p90_s(tpot_p50, tpot_p90)
        return served

    def expect(self, since_s: float, modelled: NDArray[np.float64]) -> Awaited:
        """A request was dispatched.

        Args:
            since_s: when; `apply` goes by the same clock.
            modelled: (4,), what the model, without a width, said of it.
        """
        awaited = Awaited(self, since_s, modelled)
        heapq.heappush(self._waiting, (awaited.deadline_s, next(self._numbers), awaited))
        return awaited

    def note_known(self) -> None:
        """One of those that wait is known; forgets them when there are many."""
        self._known += 1
        if 2 * self._known > len(self._waiting) + SPARE:
            self._waiting = [entry for entry in self._waiting if not entry[2].known]
            heapq.heapify(self._waiting)
            self._known = 0

    def _count_overdue(self, now_s: float) -> None:
        while self._waiting and self._waiting[0][0] <= now_s:
            _, number, awaited = heapq.heappop(self._waiting)
            if awaited.known:
                self._known -= 1
                continue
            deadline_s = awaited.deadline_s
            if deadline_s > now_s:  # the width has grown since
                heapq.heappush(self._waiting, (deadline_s, number, awaited))
            else:
                awaited.overdue()


class Awaited:
    """One attempt on its way: what the model said of it, until it is known how it went.

    `first_token`, `finish` and `abort` are told what is seen, each at most once. An attempt whose first
    token nobody will see, or that is not to teach, is not made one.
    """

    __slots__ = ("_charged", "_since_s", "_tpot", "_ttft", "_width", "_widths", "known")

    def __init__(self, widths: Widths, since_s: float, modelled: NDArray[np.float64]) -> None:
        ttft_p50, ttft_p90, tpot_p50, tpot_p90 = modelled.tolist()
        self._widths = widths
        self._width = widths.of_ttft(ttft_p50)
        self._since_s = since_s
        self._ttft = ttft_p50, ttft_p90
        self._tpot = tpot_p50, tpot_p90
        self._charged: float | None = None
        self.known = False
        """Whether its TTFT needs no deadline any more."""

    @property
    def deadline_s(self) -> float:
        """When its TTFT will be above p90 at the present width."""
        return self._since_s + self._width.p90_s(*self._ttft)

    def overdue(self) -> None:
        """The deadline has passed without a first token."""
        self._charged = self._width.count(outside=True)
        self.known = True

    def first_token(self, ttft_s: float) -> None:
        """It came `ttft_s` after the dispatch."""
        if self._charged is None:
            self._width.learn(*self._ttft, ttft_s)
            self._settled()

    def finish(self, tpot_s: float) -> None:
        """It ended well, with several tokens."""
        self._widths.tpot.learn(*self._tpot, tpot_s)

    def abort(self) -> None:
        """It ended without a first token that counts: what its deadline taught is taken back."""
        if self._charged is not None:
            self._width.move(-self._charged)
        elif not self.known:
            self._settled()

    def _settled(self) -> None:
        self.known = True
        self._widths.note_known()
