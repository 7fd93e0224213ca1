"""Parts of a stream of requests, without holding it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from steersman.traces.errors import ConfigError
from steersman.traces.readers.order import Recent
from steersman.traces.schema import Request


def sliced(
    requests: Iterable[Request],
    *,
    start_s: float = 0.0,
    end_s: float | None = None,
    limit: int | None = None,
) -> Iterator[Request]:
    """Requests that arrive in [start_s, end_s), with `start_s` as the new zero; at most `limit`.

    A turn whose parent is left out becomes a root.

    Args:
        requests: in order of arrival.
    """
    passed: Recent[str, None] = Recent()
    count = 0
    for request in requests:
        if (end_s is not None and request.arrival_s >= end_s) or count == limit:
            return
        if request.arrival_s < start_s:
            continue
        count += 1
        passed[request.request_id] = None
        changes: dict[str, Any] = {"arrival_s": request.arrival_s - start_s}
        if request.parent_id is not None and request.parent_id not in passed:
            changes |= {"parent_id": None, "think_time_s": 0.0}
        yield replace(request, **changes) if start_s or len(changes) > 1 else request


def time_factor(requests: Iterable[Request], rate_rps: float) -> float:
    """What to multiply times with for a mean rate of `rate_rps`.

    Raises:
        ConfigError: fewer than two requests, or all at once: there is no rate to scale.
    """
    count, first_s, last_s = 0, 0.0, 0.0
    for count, request in enumerate(requests, 1):
        first_s = request.arrival_s if count == 1 else first_s
        last_s = request.arrival_s
    if not last_s > first_s:
        raise ConfigError("a rate needs at least two requests at different times")
    return (count - 1) / (last_s - first_s) / rate_rps
