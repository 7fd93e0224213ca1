"""Our own outcome log as a trace: what the router saw comes back in through the first door."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

from steersman.traces.outcome_reading import is_outcome_log, read_outcomes
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.readers.order import Placed, Recent, reordered
from steersman.traces.schema import Request, Status

__all__ = ["is_outcome_log", "read_outcome_log"]

LONGEST_S = 3600.0
"""Records are written when requests end: after one that ran longer, sort the log to read it."""
_NEEDED = {field.name for field in fields(Request)} | {"status", "e2e_s"}


class _Ended(NamedTuple):
    request_id: str
    at_s: float


def read_outcome_log(path: Path, model: str) -> Iterator[Placed]:
    """Requests in order of arrival, the first at time zero; the place is the record's number.

    See `as_requests`.
    """
    return as_requests(read_outcomes(path, only=_NEEDED), model)


def as_requests(records: Iterable[OutcomeRecord], model: str) -> Iterator[Placed]:
    """Logged requests in order of arrival, the first at time zero; the place is the record's number.

    Refused requests are left out: no backend ever served them. A turn's parent is the one logged,
    or else the session's previous request, if it had ended by then; the think time counts from its end.
    """
    start_s: float | None = None
    last_of: Recent[str, _Ended] = Recent()
    by_id: Recent[str, _Ended] = Recent()
    for place, record in _by_arrival(records):
        if start_s is None:
            start_s = record.arrival_unix_s
        request = record.request(record.arrival_unix_s - start_s)
        # Clients choose ids, and may choose the same twice.
        unique_id = (
            request.request_id if record.request_id not in by_id else f"{record.request_id}@{place}"
        )
        request = replace(request, request_id=unique_id, model=request.model or model, parent_id=None)
        parent = by_id.get(record.parent_id) if record.parent_id is not None else None
        if parent is None and record.session_id is not None:
            parent = last_of.get(record.session_id)
        if parent is not None and parent.at_s <= record.arrival_unix_s:
            think_s = record.arrival_unix_s - parent.at_s
            request = replace(request, parent_id=parent.request_id, think_time_s=think_s)
        ended = _Ended(unique_id, record.arrival_unix_s + _duration_s(record))
        by_id[record.request_id] = ended
        if record.session_id is not None:
            last_of[record.session_id] = ended
        yield place, request


def _by_arrival(records: Iterable[OutcomeRecord]) -> Iterator[tuple[int, OutcomeRecord]]:
    def watermarked() -> Iterator[tuple[float, float, tuple[int, OutcomeRecord]]]:
        for place, record in enumerate(records, 1):
            if record.status is not Status.REJECTED:
                watermark_s = record.arrival_unix_s + _duration_s(record) - LONGEST_S
                yield watermark_s, record.arrival_unix_s, (place, record)

    return reordered(watermarked())


def _duration_s(record: OutcomeRecord) -> float:
    """Arrival to end; 0 where it did not end well."""
    return record.e2e_s if 0.0 < record.e2e_s < math.inf else 0.0
