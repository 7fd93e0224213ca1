"""Azure LLM inference traces (2023, 2024), and plain tables of times and token counts."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from steersman.traces.readers.fields import Fields
from steersman.traces.readers.order import Placed
from steersman.traces.readers.source import Source
from steersman.traces.schema import Request

AZURE_COLUMNS = ("TIMESTAMP", "ContextTokens", "GeneratedTokens")
PLAIN_COLUMNS = ("t_s", "input_tokens", "output_tokens")


def read_azure(source: Source, model: str) -> Iterator[Placed]:
    """The files as Azure publishes them.

    2023 writes `2023-11-16 18:15:46.6805900`, 2024 `2024-05-10 00:00:00.009930+00:00`, with or without
    the fraction; times without a zone are UTC. Arrivals count from the first row's.
    """
    fields = Fields(str(source.path))
    start: datetime | None = None
    for place, row in source.rows():
        at = fields.at(place, row)
        time = _timestamp(at)
        if start is None:
            start = time
        yield (
            place,
            Request(
                request_id=f"r{place}",
                arrival_s=(time - start).total_seconds(),
                input_tokens=at.tokens("ContextTokens"),
                output_tokens=at.tokens("GeneratedTokens"),
                model=model,
                hour_of_day=hour_of_day(time),
            ),
        )


def read_plain(source: Source, model: str) -> Iterator[Placed]:
    """`t_s`, `input_tokens`, `output_tokens`: seconds from the start, and tokens."""
    fields = Fields(str(source.path))
    for place, row in source.rows():
        at = fields.at(place, row)
        yield (
            place,
            Request(
                request_id=f"r{place}",
                arrival_s=at.seconds("t_s"),
                input_tokens=at.tokens("input_tokens"),
                output_tokens=at.tokens("output_tokens"),
                model=model,
            ),
        )


def hour_of_day(time: datetime) -> float:
    """Hours since midnight, with fraction: below 24."""
    return time.hour + time.minute / 60.0 + (time.second + time.microsecond / 1e6) / 3600.0


def _timestamp(at: Fields) -> datetime:
    value = at.raw("TIMESTAMP")
    if isinstance(value, datetime):
        time = value
    else:
        try:
            time = datetime.fromisoformat(str(value))  # digits beyond microseconds are cut off
        except ValueError:
            message = f"'TIMESTAMP' = {value!r} is not a time like 2023-11-16 18:15:46.680590"
            raise at.error(message) from None
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
