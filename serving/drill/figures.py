"""What a rehearsal measures, from the outcome log and the replays."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from steersman.agents.offpolicy.learning import learning
from steersman.serving.canary.tally import CHALLENGER
from steersman.serving.replay_result import ReplayResult
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Status

Row = dict[str, str | float | None]


@dataclass(frozen=True)
class Drift:
    """When the change of hardware was noticed."""

    requests: int
    """That arrived after the change, until then."""
    seconds: float
    what: str
    """Hardware and prediction that drifted."""


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
    return Drift(came, first.at_unix_s - changed_unix_s, f"{first.target} on {first.hardware}")


def p99_ttft_s(result: ReplayResult) -> float:
    """Of what ended well."""
    return float(np.quantile(result.ttft_s[result.ok], 0.99)) if result.ok.any() else math.nan


@dataclass(frozen=True)
class Harm:
    """What a bad challenger did to the requests of an act."""

    requests: int
    """All of the act."""
    served: int
    """By the challenger."""
    harmed: int
    """Of those, failed or over an objective."""

    @property
    def fraction(self) -> float:
        """Harmed of all."""
        return self.harmed / self.requests if self.requests else 0.0


def harm(records: Sequence[OutcomeRecord]) -> Harm:
    """Count it: every request that the challenger served and that failed or missed an objective, though
    some of them would have missed it anywhere."""
    ended = [r for r in records if r.status in {Status.OK, Status.FAILED, Status.UNFINISHED}]
    own = [record for record in ended if record.arm == CHALLENGER]
    return Harm(len(ended), len(own), sum(not _met(record) for record in own))


def _met(record: OutcomeRecord) -> bool:
    if record.status is not Status.OK:
        return False
    # Unknown objectives (NaN) are met.
    return not (record.ttft_s > record.ttft_slo_s or record.tpot_s > record.tpot_slo_s)


def row(name: str, value: float | None, unit: str, note: str = "") -> Row:
    """A row of `rehearsal.json`; see docs/evaluation.md, "Figures"."""
    known = None if value is None or not math.isfinite(value) else float(value)
    return {"name": name, "value": known, "lo": None, "hi": None, "unit": unit, "note": note}
