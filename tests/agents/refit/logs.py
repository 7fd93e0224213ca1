"""Logs made of lessons."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from steersman.agents.refit.outcomes import Taught
from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord
from steersman.traces.schema import Status


def record_of(lesson: Taught, number: int) -> OutcomeRecord:
    """The line of the log that teaches this."""
    e2e_s = lesson.ttft_s + lesson.tpot_s * (lesson.output_tokens - 1)
    return OutcomeRecord(
        request_id=f"r{number}",
        arrival_unix_s=lesson.ended_s - e2e_s - 0.01,
        input_tokens=int(lesson.request[0]),
        decided_at_s=lesson.decided_at_s,
        queued_s=0.01,
        replica_ids=("a",),
        state=lesson.state[None].copy(),
        match_tokens=np.array([lesson.match_tokens]),
        request_features=lesson.request,
        choice=0,
        status=Status.OK,
        ttft_s=lesson.ttft_s + 0.01,
        tpot_s=lesson.tpot_s,
        e2e_s=e2e_s + 0.01,
        output_tokens=int(lesson.output_tokens),
    )


def write_log(directory: Path, lessons: Sequence[Taught]) -> Path:
    """A log on disk."""
    with OutcomeLogWriter(directory, queue_records=10**6) as log:
        for number, lesson in enumerate(lessons):
            assert log.append(record_of(lesson, number))
    return directory


def slower(lesson: Taught, factor: float) -> Taught:
    """As if it had taken so many times longer."""
    return lesson._replace(ttft_s=lesson.ttft_s * factor, tpot_s=lesson.tpot_s * factor)
