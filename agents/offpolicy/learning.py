"""What learned while the log was written: drift, corrections of bias, and other models (SPEC A6).

The detectors of the router (`predictors/drift.py`, `pace.py`) are run over the logged predictions and
outcomes, so their alarms are those the router had, but for what it had seen before the log begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steersman.agents.offpolicy.hardware import profile_of_row
from steersman.agents.refit.outcomes import teaches
from steersman.predictors import ledger as L
from steersman.predictors import pace as P
from steersman.predictors.drift import DriftDetector
from steersman.predictors.pace import Pace
from steersman.traces.outcome_record import OutcomeRecord

ANY = "any"
"""Hardware of the output length, which does not depend on it."""


@dataclass(frozen=True)
class Alarm:
    """Predictions of something drifted, or a replica does not take as long as it did."""

    hardware: str
    target: str
    """`ttft`, `tpot`, `output`; `raw_ttft` and `raw_tpot` for estimates without correction."""
    outcomes: int
    """Of the log, that had ended then."""
    at_unix_s: float
    since_unix_s: float
    """When it began, as far as can be told: arrival of the first request whose outcome went into the
    sum that raised it."""
    replica: str = ""
    """Whose estimates; empty for predictions, which are watched by hardware."""


@dataclass(frozen=True)
class Correction:
    """The bias corrector of a replica: actual over estimated, at the first decision and the last."""

    replica: str
    ttft_first: float
    ttft_last: float
    tpot_first: float
    tpot_last: float


@dataclass(frozen=True)
class Served:
    """A stretch of decisions by one version."""

    version: str
    since_unix_s: float
    decisions: int


@dataclass(frozen=True)
class Learning:
    """All of it."""

    alarms: tuple[Alarm, ...]
    statistics: dict[tuple[str, str], float]
    """(hardware, or the replica for estimates; target) → drift statistic at the end of the log; above 1
    it has drifted."""
    corrections: tuple[Correction, ...]
    versions: tuple[Served, ...]
    """In order of time; what a refit replaced shows as a new one."""

    @property
    def changed_unix_s(self) -> float:
        """When latencies last changed, as far as can be told; -inf: they did not."""
        changes = (alarm.since_unix_s for alarm in self.alarms if alarm.target != "output")
        return max(changes, default=-math.inf)


def learning(records: Sequence[OutcomeRecord]) -> Learning:
    """Of one model's records, in any order."""
    watch = _Watch()
    taught = filter(teaches, records)
    for record in sorted(taught, key=lambda record: record.arrival_unix_s + record.e2e_s):
        watch.observe(record)
    decided = sorted(
        (record for record in records if _has_row(record)), key=lambda record: record.arrival_unix_s
    )
    return Learning(
        alarms=tuple(watch.alarms),
        statistics=watch.statistics,
        corrections=_corrections(decided),
        versions=_versions(decided),
    )


class _Watch:
    """The detectors, as a router keeps them."""

    def __init__(self) -> None:
        self.alarms: list[Alarm] = []
        self._predictions: dict[tuple[str, str], DriftDetector] = {}
        self._paces: dict[str, Pace] = {}
        self._names: dict[bytes, str] = {}
        self._arrivals: dict[tuple[str, str], list[float]] = {}
        """Of what each detector has seen."""
        self._version = ""
        self._seen = 0

    @property
    def statistics(self) -> dict[tuple[str, str], float]:
        """See `Learning`."""
        found = {key: detector.statistic for key, detector in self._predictions.items()}
        for replica, pace in self._paces.items():
            found |= {(replica, P.RAW + target): pace.statistic(target) for target in P.TARGETS}
        return found

    def observe(self, record: OutcomeRecord) -> None:
        """One that teaches; in the order of ending."""
        self._seen += 1
        if self._version != record.bundle_version:
            self._version = record.bundle_version
            for detector in self._predictions.values():
                detector.restart()
            for pace in self._paces.values():
                pace.restart()
        hardware = self._hardware(record)
        ttft_s = record.ttft_s - record.queued_s
        pace = self._paces.setdefault(record.replica_id, Pace())
        for target, actual, raw, p50 in (
            ("ttft", ttft_s, record.estimated_ttft_s, record.ttft_p50_s),
            ("tpot", record.tpot_s, record.estimated_tpot_s, record.tpot_p50_s),
        ):
            key = (record.replica_id, P.RAW + target)
            if 0.0 < actual < math.inf and 0.0 < raw < math.inf:
                self._arrivals.setdefault(key, []).append(record.arrival_unix_s)
            if pace.observe(target, actual, raw):
                since_unix_s = self._arrivals[key][-pace.run(target)]
                self._raise(record, hardware, key[1], since_unix_s, record.replica_id)
            self._compare(record, (hardware, target), actual, p50)
        self._compare(record, (ANY, "output"), float(record.output_tokens or 0), record.output_p50)

    def _compare(self, record: OutcomeRecord, key: tuple[str, str], actual: float, p50: float) -> None:
        if not (0.0 < actual < math.inf and 0.0 < p50 < math.inf):
            return
        self._arrivals.setdefault(key, []).append(record.arrival_unix_s)
        detector = self._predictions.setdefault(key, DriftDetector())
        if detector.observe(math.log(actual / p50)):
            self._raise(record, *key, self._arrivals[key][-detector.run])

    def _raise(
        self,
        record: OutcomeRecord,
        hardware: str,
        target: str,
        since_unix_s: float,
        replica: str = "",
    ) -> None:
        ended_unix_s = record.arrival_unix_s + record.e2e_s
        self.alarms.append(Alarm(hardware, target, self._seen, ended_unix_s, since_unix_s, replica))

    def _hardware(self, record: OutcomeRecord) -> str:
        row = record.state[record.choice]
        told = row[: L.BASE_WEIGHT + 1].tobytes()
        if told not in self._names:
            self._names[told] = profile_of_row(row, record.model).name
        return self._names[told]


def _has_row(record: OutcomeRecord) -> bool:
    return len(record.replica_ids) > 0 and record.state.shape == (
        len(record.replica_ids),
        L.STATE_WIDTH,
    )


def _corrections(decided: Sequence[OutcomeRecord]) -> tuple[Correction, ...]:
    if not decided:
        return ()
    first: dict[str, tuple[float, float]] = {}
    last: dict[str, tuple[float, float]] = {}
    for record in decided:
        for name, row in zip(record.replica_ids, record.state, strict=True):
            factors = math.exp(row[L.LOG_BIAS_TTFT]), math.exp(row[L.LOG_BIAS_TPOT])
            first.setdefault(name, factors)
            last[name] = factors
    return tuple(
        Correction(name, first[name][0], last[name][0], first[name][1], last[name][1])
        for name in decided[-1].replica_ids
    )


def _versions(decided: Sequence[OutcomeRecord]) -> tuple[Served, ...]:
    found: list[Served] = []
    for record in decided:
        version = record.bundle_version or record.policy_version or record.policy
        if record.fallback_reason and found:
            version = found[-1].version  # a fallback's own version says nothing of what serves
        if found and found[-1].version == version:
            last = found.pop()
            found.append(Served(version, last.since_unix_s, last.decisions + 1))
        else:
            found.append(Served(version, record.arrival_unix_s, 1))
    return tuple(found)
