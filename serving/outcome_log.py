"""The outcome log of a router, opened from its settings; and what its workers could not write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from steersman.serving.config import RouterSettings
from steersman.serving.metrics import RouterMetrics
from steersman.traces.outcome_log import OutcomeLogWriter
from steersman.traces.outcome_overflow import Overflow
from steersman.traces.outcome_segments import OUTCOMES
from steersman.traces.shadow_record import DIRECTORY, STEM

Overflows = Mapping[str, Overflow]
"""Of the logs that several workers write together, by the stem of their segments."""


def overflows_of(settings: RouterSettings) -> Overflows:
    """Made before the workers are forked."""
    most_bytes = settings.outcome_log.overflow_bytes
    return {OUTCOMES: Overflow(most_bytes), STEM: Overflow(most_bytes)}


def open_outcomes(
    settings: RouterSettings, metrics: RouterMetrics, overflows: Overflows | None
) -> OutcomeLogWriter | None:
    """The log of decisions and outcomes, and its metrics; None where none is asked for.

    Raises:
        ConfigError: its directory cannot be used.
    """
    if not settings.outcome_log.directory:
        return None
    log = outcomes_writer(settings, overflows)
    metrics.watch_count("outcome_log_records", "Records handed to the outcome log", lambda: log.offered)
    metrics.watch_count("outcome_log_cpu_seconds", "Processor time it takes", lambda: log.cpu_s)
    metrics.watch_count("outcome_log_dropped", "Records lost", lambda: log.dropped)
    metrics.watch_count("outcome_log_errors", "Failed writes", lambda: log.write_errors)
    metrics.watch_value("outcome_log_queued", "Records not yet on disk", lambda: float(log.queued))
    metrics.watch_value(
        "outcome_log_overflow_records",
        "Records of all workers that wait until the disk takes them",
        lambda: float(log.overflow.records),
    )
    return log


def outcomes_writer(settings: RouterSettings, overflows: Overflows | None) -> OutcomeLogWriter:
    """Of decisions and outcomes. `overflows` of one of several workers: the directory was looked at
    before they were forked, and one that is started while it cannot be used serves all the same.

    Raises:
        ConfigError: the directory cannot be used.
    """
    options = settings.outcome_log
    return OutcomeLogWriter(
        options.directory,
        segment_bytes=options.segment_bytes,
        total_bytes=options.total_bytes,
        flush_interval_s=options.flush_interval_s,
        segment_s=options.segment_s,
        overflow=_overflow(settings, overflows, OUTCOMES),
        checked=overflows is not None,
    )


def opinions_writer(settings: RouterSettings, overflows: Overflows | None) -> OutcomeLogWriter:
    """Of what challengers would have done; raises as `outcomes_writer`."""
    return OutcomeLogWriter(
        Path(settings.outcome_log.directory) / DIRECTORY,
        segment_bytes=settings.shadow.segment_bytes,
        total_bytes=settings.shadow.total_bytes,
        flush_interval_s=settings.outcome_log.flush_interval_s,
        stem=STEM,
        overflow=_overflow(settings, overflows, STEM),
        checked=overflows is not None,
    )


def write_leftovers(settings: RouterSettings, overflows: Overflows) -> None:
    """What the last worker could not write: one more try, which says what is lost if it fails."""
    for stem, writer in ((OUTCOMES, outcomes_writer), (STEM, opinions_writer)):
        if overflows[stem].records and settings.outcome_log.directory:
            writer(settings, overflows).close(last=True)


def _overflow(settings: RouterSettings, overflows: Overflows | None, stem: str) -> Overflow:
    return Overflow(settings.outcome_log.overflow_bytes) if overflows is None else overflows[stem]
