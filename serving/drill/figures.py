"""What a rehearsal measures, from the outcome log and the replays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.agents.offpolicy.learning import learning
from steersman.serving.canary.tally import CHALLENGER
from steersman.serving.replay_result import ReplayResult
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Status

Row = dict[str, str | float | None]

BLOCK = 50
"""Requests that are drawn together."""
RESAMPLES = 1000


@dataclass(frozen=True)
class Drift:
    """When the change of hardware was noticed."""

    requests: int
    """That arrived after the change, until then."""
    seconds: float
    what: str
    """What drifted, and where."""


def drift(records: Sequence[OutcomeRecord], changed_unix_s: float) -> Drift | None:
    """The first alarm about latencies after a change; None: there was none.

    Args:
        records: also from before the change, of which the detectors learn what is usual.
    """
    alarms = [
        alarm
        for alarm in learning(records).alarms
        if alarm.at_unix_s >= changed_unix_s and alarm.target != "output"
    ]
    if not alarms:
        return None
    first = min(alarms, key=lambda alarm: alarm.at_unix_s)
    came = sum(changed_unix_s <= record.arrival_unix_s <= first.at_unix_s for record in records)
    where = first.replica or first.hardware
    return Drift(came, first.at_unix_s - changed_unix_s, f"{first.target} on {where}")


def p99_ttft_s(result: ReplayResult) -> float:
    """Of what ended well."""
    return _p99(result.ttft_s[result.ok])


@dataclass(frozen=True)
class P99Ratio:
    """p99 of TTFT of the same requests, served twice."""

    before_s: float
    after_s: float
    lo: float
    """Lower end of the ratio's 95 % interval."""
    hi: float

    @property
    def ratio(self) -> float:
        """After over before."""
        return self.after_s / self.before_s


def p99_ratio(before: ReplayResult, after: ReplayResult, *, settling: int, seed: int) -> P99Ratio:
    """Compare two replays of one trace.

    The interval is that of a paired bootstrap over blocks of `BLOCK` neighbouring requests, the same
    blocks of both (Künsch, "The jackknife and the bootstrap for general stationary observations", 1989):
    queues make neighbours alike. It covers the choice of requests, not what a machine does from run to
    run.

    Args:
        settling: the first requests, which do not count.
    """
    ttft_s = [np.where(one.ok, one.ttft_s, np.nan)[settling:] for one in (before, after)]
    requests = min(len(values) for values in ttft_s)
    starts = max(requests - BLOCK, 0) + 1
    rng, drawn = np.random.default_rng(seed), []
    for _ in range(RESAMPLES):
        first = rng.integers(0, starts, size=-(-requests // BLOCK))
        rows = np.minimum(first[:, None] + np.arange(BLOCK), requests - 1).ravel()
        low, high = (_p99(values[rows]) for values in ttft_s)
        drawn.append(high / low)
    lo, hi = np.nanquantile(drawn, (0.025, 0.975))
    return P99Ratio(_p99(ttft_s[0]), _p99(ttft_s[1]), float(lo), float(hi))


def _p99(values: NDArray[np.float64]) -> float:
    known = values[np.isfinite(values)]
    return float(np.quantile(known, 0.99)) if len(known) else math.nan


@dataclass(frozen=True)
class Harm:
    """What a bad challenger did while it was tried."""

    requests: int
    """All that came then."""
    served: int
    """By the challenger."""
    harmed: int
    """Of those, failed or over an objective."""

    @property
    def fraction(self) -> float:
        """Harmed of all."""
        return self.harmed / self.requests if self.requests else 0.0


def harm(records: Sequence[OutcomeRecord], from_unix_s: float, to_unix_s: float) -> Harm:
    """Count it, of what arrived from the canary's start to its end: every request that the challenger
    served and that failed or missed an objective, though some of them would have missed it anywhere."""
    records = [r for r in records if from_unix_s <= r.arrival_unix_s <= to_unix_s]
    ended = [r for r in records if r.status in {Status.OK, Status.FAILED, Status.UNFINISHED}]
    own = [record for record in ended if record.arm == CHALLENGER]
    return Harm(len(ended), len(own), sum(not _met(record) for record in own))


def _met(record: OutcomeRecord) -> bool:
    if record.status is not Status.OK:
        return False
    # Unknown objectives (NaN) are met.
    return not (record.ttft_s > record.ttft_slo_s or record.tpot_s > record.tpot_slo_s)


def row(
    name: str,
    value: float | None,
    unit: str,
    note: str = "",
    *,
    lo: float | None = None,
    hi: float | None = None,
) -> Row:
    """A row of `rehearsal.json`; see docs/evaluation.md, "Figures"."""
    known = None if value is None or not math.isfinite(value) else float(value)
    return {"name": name, "value": known, "lo": lo, "hi": hi, "unit": unit, "note": note}
