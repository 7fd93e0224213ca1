"""What was learned while a champion served: alarms, corrections, versions."""

from __future__ import annotations

from datetime import UTC, datetime

from steersman.agents.offpolicy.learning import Learning
from steersman.agents.report.page import Section, Table


def learning_section(found: Learning) -> Section:
    """Learning while serving."""
    alarms = [
        [
            alarm.target,
            alarm.replica or alarm.hardware,
            str(alarm.outcomes),
            _time(alarm.at_unix_s),
        ]
        for alarm in found.alarms
    ]
    corrections = [
        [
            each.replica,
            f"{each.ttft_first:.2f} → {each.ttft_last:.2f}",
            f"{each.tpot_first:.2f} → {each.tpot_last:.2f}",
        ]
        for each in found.corrections
    ]
    versions = [[each.version, _time(each.since_unix_s), str(each.decisions)] for each in found.versions]
    highest = max(found.statistics.values(), default=0.0)
    said = f"Drift alarms: {len(alarms)}" if alarms else "No prediction drifted"
    tables = [
        Table(("version that served", "since", "decisions"), versions),
        Table(("replica", "TTFT", "TPOT"), corrections, caption="Actual over estimated, first → last"),
    ]
    if alarms:
        tables.insert(0, Table(("drifted", "where", "after outcomes", "at"), alarms))
    return Section(
        "Learning while serving",
        paragraphs=[
            f"{said}; the highest drift statistic at the end is {highest:.2f}, above 1 is drift. A "
            "refit shows as another version."
        ],
        tables=[table for table in tables if table.rows],
    )


def _time(unix_s: float) -> str:
    return datetime.fromtimestamp(unix_s, UTC).strftime("%Y-%m-%d %H:%M:%S")
