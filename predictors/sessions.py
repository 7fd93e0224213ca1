"""How long a session still goes on, and what its last answer was like (SPEC A4).

An agent calls again and again. How many calls are still to come is read off the tenant's past sessions:
the mean, over the last that ended and had reached this turn, of the turns they still took. While these
are few, a second estimate has a say: of all turns so far, those too of sessions that still go on, the
share that were followed by another. Turns are taken in bands, within which that share is one number; the
expected number of further turns follows in closed form.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Hashable
from dataclasses import dataclass, field

from steersman.predictors.history import RollingQuantiles

IDLE_S = 600.0
"""A session that sends nothing for so long is over."""
BANDS = (1, 2, 3, 5, 9, 17, 25, 33, 49)
"""First turns of the bands; the last has no end."""
ENDED_WINDOW = 200
"""Ended sessions remembered per tenant."""
SHARE_WEIGHT = 2.0
"""Ended sessions that the estimate by shares counts for."""
BAND_WEIGHT = 4.0
"""Turns of evidence that the tenant's share over all bands counts for in each."""
PRIOR_WEIGHT = 4.0
PRIOR_SHARE = 0.5
"""Of turns that are followed by another, while little is known."""
FORGET_AT = 4096.0
"""Turns counted in a band before all of its counts are halved: what is old fades."""
MOST_SESSIONS = 50_000
MOST_TENANTS = 10_000


@dataclass(slots=True)
class _Session:
    tenant: Hashable
    at_s: float
    turn: int = 1
    output_tokens: int = 0


@dataclass(slots=True)
class _Counts:
    """Per band: turns that were followed by another, and turns that were the last."""

    went_on: list[float] = field(default_factory=lambda: [0.0] * len(BANDS))
    ended: list[float] = field(default_factory=lambda: [0.0] * len(BANDS))
    lengths: RollingQuantiles = field(default_factory=lambda: RollingQuantiles((ENDED_WINDOW,)))
    """Turns of the sessions that ended."""

    def add(self, turn: int, *, went_on: bool) -> None:
        if not went_on:
            self.lengths.add(turn)
        band = bisect_right(BANDS, turn) - 1
        (self.went_on if went_on else self.ended)[band] += 1.0
        if self.went_on[band] + self.ended[band] > FORGET_AT:
            self.went_on[band] *= 0.5
            self.ended[band] *= 0.5

    def expected_further(self, turn: int) -> float:
        """Mean number of turns after this one."""
        reached, further = self.lengths.excess(0, turn)
        by_shares = self._by_shares(turn)
        return (further + SHARE_WEIGHT * by_shares) / (reached + SHARE_WEIGHT)

    def _by_shares(self, turn: int) -> float:
        on, over = sum(self.went_on), sum(self.ended)
        overall = (on + PRIOR_WEIGHT * PRIOR_SHARE) / (on + over + PRIOR_WEIGHT)
        band = bisect_right(BANDS, turn) - 1
        expected = 0.0
        for i in range(len(BANDS) - 1, band - 1, -1):
            on, over = self.went_on[i], self.ended[i]
            share = (on + BAND_WEIGHT * overall) / (on + over + BAND_WEIGHT)
            # From turn k of a band that ends before turn e: share + … + share^(e-k), then what follows.
            if i == len(BANDS) - 1:
                expected = share / (1.0 - share)
            else:
                all_on = share ** (BANDS[i + 1] - max(turn, BANDS[i]))
                expected = share * (1.0 - all_on) / (1.0 - share) + all_on * expected
        return expected


class SessionHistory:
    """Follows sessions, and learns per (tenant, model) how long they last. Not thread-safe.

    Memory is bounded: the most recently active sessions and tenants are remembered.
    """

    def __init__(self, *, most_sessions: int = MOST_SESSIONS, most_tenants: int = MOST_TENANTS) -> None:
        self._most_sessions = most_sessions
        self._most_tenants = most_tenants
        self._sessions: OrderedDict[Hashable, _Session] = OrderedDict()
        self._tenants: OrderedDict[Hashable, _Counts] = OrderedDict()

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(self, tenant: Hashable, session: Hashable, now_s: float) -> tuple[float, float, float]:
        """A request of a session comes in.

        Args:
            tenant: whose sessions are alike: for example (tenant, model).
            now_s: does not run backwards.

        Returns:
            Output tokens of the session's last answer (0: none yet), this turn's number from 1, and how
            many turns are to be expected after it.
        """
        self._end_idle(now_s)
        key = (tenant, session)
        known = self._sessions.get(key)
        if known is None:
            known = self._sessions[key] = _Session(tenant, now_s)
            if len(self._sessions) > self._most_sessions:
                self._sessions.popitem(last=False)
        else:
            self._counts(tenant).add(known.turn, went_on=True)
            known.turn += 1
            known.at_s = now_s
            self._sessions.move_to_end(key)
        counts = self._tenants.get(tenant) or _NOTHING
        return float(known.output_tokens), float(known.turn), counts.expected_further(known.turn)

    def end(self, tenant: Hashable, session: Hashable, output_tokens: int) -> None:
        """One of its answers ended well, with so many tokens."""
        known = self._sessions.get((tenant, session))
        if known is not None:
            known.output_tokens = output_tokens

    def _end_idle(self, now_s: float) -> None:
        sessions = self._sessions
        while sessions:
            key, oldest = next(iter(sessions.items()))
            if oldest.at_s > now_s - IDLE_S:
                return
            del sessions[key]
            self._counts(oldest.tenant).add(oldest.turn, went_on=False)

    def _counts(self, tenant: Hashable) -> _Counts:
        known = self._tenants.get(tenant)
        if known is None:
            known = self._tenants[tenant] = _Counts()
            if len(self._tenants) > self._most_tenants:
                self._tenants.popitem(last=False)
        else:
            self._tenants.move_to_end(tenant)
        return known


_NOTHING = _Counts()
