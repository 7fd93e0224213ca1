"""What learned while the log was written: drift, corrections of bias, and other models (SPEC A6).

The detectors of the router (`predictors/drift.py`) are run over the logged predictions and outcomes, so
their alarms are those the router had, but for what it had seen before the log begins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from steersman.agents.offpolicy.hardware import profile_of_row
from steersman.agents.refit.outcomes import teaches
from steersman.predictors import ledger as L
from steersman.predictors.drift import DriftDetector
from steersman.traces.outcome_record import OutcomeRecord

ANY = "any"
"""Hardware of the output length, which does not depend on it."""


@dataclass(frozen=True)
class Alarm:
    """Predictions of something drifted."""

    hardware: str
    target: str
    outcomes: int
    """Of the log, that had ended then."""
    at_unix_s: float


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
    """(hardware, target) → drift statistic at the end of the log; above 1 it has drifted."""
    corrections: tuple[Correction, ...]
    versions: tuple[Served, ...]
    """In order of time; what a refit replaced shows as a new one."""

    @property
    def last_alarm_unix_s(self) -> float:
        """-inf without any."""
        return max((alarm.at_unix_s for alarm in self.alarms), default=-math.inf)


def learning(records: Sequence[OutcomeRecord]) -> Learning:
    """Of one model's records, in any order."""
    alarms, detectors = _drift(records)
    decided = sorted(
        (record for record in records if _has_row(record)), key=lambda record: record.arrival_unix_s
    )
    return Learning(
        alarms=alarms,
        statistics={key: detector.statistic for key, detector in detectors.items()},
        corrections=_corrections(decided),
        versions=_versions(decided),
    )


def _drift(
    records: Sequence[OutcomeRecord],
) -> tuple[tuple[Alarm, ...], dict[tuple[str, str], DriftDetector]]:
    detectors: dict[tuple[str, str], DriftDetector] = {}
    names: dict[bytes, str] = {}
    alarms: list[Alarm] = []
    version = ""
    taught = sorted(filter(teaches, records), key=lambda record: record.arrival_unix_s + record.e2e_s)
    for number, record in enumerate(taught, start=1):
        if version != record.bundle_version:
            version = record.bundle_version
            for detector in detectors.values():
                detector.restart()
        row = record.state[record.choice]
        told = row[: L.BASE_WEIGHT + 1].tobytes()
        if told not in names:
            names[told] = profile_of_row(row, record.model).name
        for target, actual, p50 in (
            ("ttft", record.ttft_s - record.queued_s, record.ttft_p50_s),
            ("tpot", record.tpot_s, record.tpot_p50_s),
            ("output", float(record.output_tokens or 0), record.output_p50),
        ):
            if not (0.0 < actual < math.inf and 0.0 < p50 < math.inf):
                continue
            key = (ANY if target == "output" else names[told], target)
            if detectors.setdefault(key, DriftDetector()).observe(math.log(actual / p50)):
                alarms.append(Alarm(*key, number, record.arrival_unix_s + record.e2e_s))
    return tuple(alarms), detectors


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
