"""Which replicas are avoided although they are healthy, and when not.

In this order: the silent, those with an open circuit, the outliers, and those that have just come and
have their share of requests already. Each of these is avoided only while somebody else can take the
request: distrust never empties a pool.

What is decided here is part of the mask that every policy sees, so the propensities it reports are
those of the choice it had.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L
from steersman.serving.breaker import Circuit
from steersman.serving.trust_settings import OutlierSettings, SlowStartSettings

if TYPE_CHECKING:
    from steersman.serving.pool import Fleet, Pool
    from steersman.serving.replica import Replica

Mask = NDArray[np.bool_]


class Trust:
    """One for the whole router."""

    def __init__(self, outliers: OutlierSettings, slow_start: SlowStartSettings) -> None:
        self.outliers = outliers
        self.slow_start = slow_start
        self.suspects: set[Replica] = set()
        """Those that have fallen silent; told by `SilenceWatch`."""
        self._doubtful: set[Replica] = set()
        """Those of which anything else is to be thought of."""

    def doubt(self, replica: Replica) -> None:
        """Its circuit opened, it was ejected, or it has come (back)."""
        self._doubtful.add(replica)

    @property
    def is_unclouded(self) -> bool:
        """Whether nobody is avoided, whatever the time."""
        return not self.suspects and not self._doubtful

    def forget(self, replica: Replica) -> None:
        """It is gone."""
        self._doubtful.discard(replica)
        self.suspects.discard(replica)

    def may_eject(self, replica: Replica, fleet: Fleet, now_s: float) -> bool:
        """Whether enough of every pool it is in would be left. One of a pool may always go, unless none
        ever may: it is avoided only while somebody else can take its requests."""
        share = self.outliers.max_ejected_share
        if share == 0.0:
            return False
        for pool in fleet.pools.values():
            if replica in pool.replicas:
                out = sum(other is replica or self.is_out(other, now_s) for other in pool.replicas)
                if out > max(share * len(pool.replicas), 1.0):
                    return False
        return True

    def is_out(self, replica: Replica, now_s: float) -> bool:
        """By its breaker or as an outlier."""
        standing = replica.standing
        return standing.is_ejected(now_s) or standing.breaker.state(now_s) is not Circuit.CLOSED

    def ramp(self, replica: Replica, now_s: float) -> float:
        """Its share of what its peers have, from `initial_share` to 1 when it is warm."""
        settings = self.slow_start
        elapsed_s = now_s - replica.standing.warming_since_s
        if elapsed_s >= settings.duration_s:
            return 1.0
        share = max(elapsed_s, 0.0) / settings.duration_s
        return settings.initial_share + (1.0 - settings.initial_share) * share

    def add_avoided(self, avoided: Mask, pool: Pool, rows: NDArray[np.float64], now_s: float) -> Mask:
        """Who is avoided beside those that must be.

        Args:
            avoided: (n,), those that must be.
            pool: the replicas.
            rows: (n, STATE_WIDTH), what is known of them.
            now_s: now.
        """
        if self.is_unclouded:
            return avoided
        able = (rows[:, L.HEALTHY] > 0) & (rows[:, L.DRAINING] == 0) & ~avoided
        left = able
        if self.suspects:
            left = _without(left, [replica in self.suspects for replica in pool.replicas])
        if self._doubtful:
            left = self._without_doubtful(left, pool, rows, now_s)
        more: Mask = avoided | (able & ~left)
        return more

    def _without_doubtful(self, able: Mask, pool: Pool, rows: NDArray[np.float64], now_s: float) -> Mask:
        standings = [replica.standing for replica in pool.replicas]
        able = _without(able, [not standing.breaker.admits(now_s) for standing in standings])
        able = _without(able, [standing.is_ejected(now_s) for standing in standings])
        ramps = np.array([self.ramp(replica, now_s) for replica in pool.replicas])
        if (ramps < 1.0).any():
            able = _without(able, over_share(rows, able, ramps))
        for replica, ramp in zip(pool.replicas, ramps, strict=True):
            if ramp == 1.0 and not self.is_out(replica, now_s):
                self._doubtful.discard(replica)
        return able


def over_share(rows: NDArray[np.float64], able: Mask, ramps: NDArray[np.float64]) -> Mask:
    """(n,): those that are warming up and have as many requests in flight as they may.

    That is the mean batch use of the warm ones, by the router's own account, times the ramp, times the
    slots of the one in question; and at least one request.
    """
    warm = able & (ramps >= 1.0)
    if not warm.any():
        return np.zeros(len(able), dtype=np.bool_)
    use = float((rows[warm, L.INFLIGHT] / rows[warm, L.MAX_NUM_SEQS]).mean())
    most = np.maximum(ramps * use * rows[:, L.MAX_NUM_SEQS], 1.0)
    over: Mask = (ramps < 1.0) & (rows[:, L.INFLIGHT] + 1.0 > most)
    return over


def _without(able: Mask, avoided: list[bool] | Mask) -> Mask:
    """Those who can take it and are not avoided; if there are none, those who can."""
    left = able & ~np.asarray(avoided, dtype=np.bool_)
    return left if left.any() else able
