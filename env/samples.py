"""What was measured of requests: read from a router's outcome log, or from a CSV file."""

from __future__ import annotations

import csv
import gzip
import io
import math
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from steersman.traces.errors import TraceError
from steersman.traces.outcome_log import read_outcomes
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.readers.outcomes import is_outcome_log
from steersman.traces.schema import Request, Status

COLUMNS = ("arrival_s", "input_tokens", "output_tokens", "ttft_s", "e2e_s")
"""Of a CSV file; `replica` is optional, and so are the times of single requests."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One request that a replica served."""

    replica: str
    request: Request
    ttft_s: float
    """NaN where it is not known; so is the next."""
    e2e_s: float


def read_samples(path: Path) -> list[Sample]:
    """Served requests of an outcome log (a directory or a segment) or of a CSV file, by arrival.

    Raises:
        TraceError: no such file, or it is neither, or a value is missing or impossible.
    """
    if not path.exists():
        raise TraceError("does not exist; give an outcome log or a CSV file", path=str(path))
    is_csv = path.is_file() and path.name.endswith((".csv", ".csv.gz"))
    if not is_csv and not is_outcome_log(path):
        raise TraceError(
            f"is neither an outcome log nor a CSV file with {', '.join(COLUMNS)}", path=str(path)
        )
    samples = _from_first(_csv_samples(path) if is_csv else _log_samples(read_outcomes(path)))
    if not samples:
        raise TraceError("holds no request that a replica served", path=str(path))
    return samples


def samples_of(records: Iterable[OutcomeRecord]) -> list[Sample]:
    """Served requests of logged outcomes, by arrival."""
    return _from_first(_log_samples(records))


def _from_first(found: Iterable[Sample]) -> list[Sample]:
    """In order of arrival, the first at time zero."""
    samples = sorted(found, key=lambda s: s.request.arrival_s)
    if not samples:
        return []
    first_s = samples[0].request.arrival_s
    return [
        replace(s, request=replace(s.request, arrival_s=s.request.arrival_s - first_s)) for s in samples
    ]


def _log_samples(records: Iterable[OutcomeRecord]) -> Iterator[Sample]:
    for record in records:
        replica = record.served_by or record.replica_id
        if not replica or not record.output_tokens or record.input_tokens < 1:
            continue
        ended_well = record.status is Status.OK and record.retries == 0
        request = record.request(record.arrival_unix_s)
        yield Sample(
            replica,
            request,
            record.ttft_s if ended_well and record.stream else math.nan,
            record.e2e_s if ended_well else math.nan,
        )


def _csv_samples(path: Path) -> Iterator[Sample]:
    for number, row in _csv_rows(path):
        try:
            values = {name: float(row[name] or "nan") for name in COLUMNS}
        except (TypeError, ValueError) as error:
            raise TraceError(f"line {number}: {error}; put a number", path=str(path)) from None
        _check_values(values, number, path)
        request = Request(
            request_id=str(number),
            arrival_s=values["arrival_s"],
            input_tokens=int(values["input_tokens"]),
            output_tokens=int(values["output_tokens"]),
        )
        yield Sample(row.get("replica") or "", request, values["ttft_s"], values["e2e_s"])


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines with their numbers.

    Raises:
        TraceError: no CSV file in UTF-8, or one without the columns.
    """
    data = path.read_bytes()
    try:
        plain = gzip.decompress(data) if path.name.endswith(".gz") else data
        reader = csv.DictReader(io.StringIO(plain.decode("utf-8-sig")))
        missing = [name for name in COLUMNS if name not in (reader.fieldnames or ())]
        if missing:
            raise TraceError(
                f"has no column '{missing[0]}'; needed: {', '.join(COLUMNS)}", path=str(path)
            )
        yield from enumerate(reader, start=2)
    except (OSError, EOFError, zlib.error, UnicodeDecodeError, csv.Error) as error:
        reason = str(error).splitlines()[0]
        raise TraceError(f"is no readable CSV file ({reason}); save it anew", path=str(path)) from None


def _check_values(values: dict[str, float], number: int, path: Path) -> None:
    def refuse(what: str) -> TraceError:
        return TraceError(f"line {number}: {what}", path=str(path))

    if not 0 <= values["arrival_s"] < math.inf:
        raise refuse(f"arrival_s = {values['arrival_s']:g} must be 0 or more, in seconds")
    for name in ("input_tokens", "output_tokens"):
        if not 1 <= values[name] < math.inf:
            raise refuse(f"{name} = {values[name]:g} must be 1 or more")
    for name in ("ttft_s", "e2e_s"):
        if values[name] <= 0:
            raise refuse(
                f"{name} = {values[name]:g} must be positive; leave it empty if it is not known"
            )
    if values["e2e_s"] < values["ttft_s"]:
        raise refuse(
            f"e2e_s = {values['e2e_s']:g} is less than ttft_s = {values['ttft_s']:g}; "
            "both count from arrival"
        )
