"""Headers: what a client may ask through them, and which of them travel on.

Hints are validated: a hint that cannot be understood is refused with status 400, because a misspelt
objective which is quietly ignored is found in production. Each hint has our name and, where another
system's header means the same, that name too; ours wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import chain

from steersman.serving.errors import ApiError, Code
from steersman.traces.schema import Priority

RawHeaders = Iterable[tuple[bytes, bytes]]

SESSION = (b"x-session-id",)
TENANT = (b"x-steersman-tenant", b"x-llm-d-inference-fairness-id")
PRIORITY = (b"x-steersman-priority",)
OBJECTIVE = b"x-llm-d-inference-objective"
TTFT_SLO = (b"x-steersman-slo-ttft-ms", b"x-llm-d-slo-ttft-ms")
TPOT_SLO = (b"x-steersman-slo-tpot-ms", b"x-llm-d-slo-tpot-ms")

REPLICA_HEADER = b"x-steersman-replica"
POLICY_HEADER = b"x-steersman-policy"
DECISION_HEADER = b"x-steersman-decision-id"
FALLBACK_HEADER = b"x-steersman-fallback"
QUEUE_HEADER = b"x-steersman-queue-ms"
DEGRADED_HEADER = b"x-steersman-degraded"

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"trailers",
        b"transfer-encoding",
        b"upgrade",
    )
)
"""RFC 9110, 7.6.1, and what older agents add."""

_NOT_UPSTREAM = HOP_BY_HOP | {b"host", b"content-length", b"expect", b"accept-encoding"}
"""Set by the client session itself. Answers are asked for uncompressed: their usage is read."""
_OURS = frozenset(
    (REPLICA_HEADER, POLICY_HEADER, DECISION_HEADER, FALLBACK_HEADER, QUEUE_HEADER, DEGRADED_HEADER)
)
_NOT_DOWNSTREAM = HOP_BY_HOP | _OURS | {b"date", b"server", b"content-length"}
_IDENTITY = (b"accept-encoding", b"identity")

_PRIORITIES = {
    key: priority
    for priority in Priority
    for key in (str(priority.value), f"p{priority.value}", priority.name.lower().replace("_", "-"))
}
_HINTS = frozenset((*SESSION, *TENANT, *PRIORITY, OBJECTIVE, *TTFT_SLO, *TPOT_SLO))
_NAME = re.compile(r"[!-~]{1,256}")
_MILLISECONDS = re.compile(r"\d{1,9}(\.\d{1,6})?")


@dataclass(frozen=True, slots=True)
class Hints:
    """What the client asked for; None or empty where it did not say."""

    session_id: str | None = None
    tenant: str = ""
    priority: Priority = Priority.INTERACTIVE
    says_priority: bool = False
    """Whether the client said how urgent it is."""
    ttft_slo_s: float | None = None
    tpot_slo_s: float | None = None


NO_HINTS = Hints()


def parse_hints(headers: RawHeaders, objectives: Mapping[str, int] | None = None) -> Hints:
    """Read and validate the hints.

    Args:
        headers: names in lower case.
        objectives: llm-d's names for what is asked for, with the priority each has; without any, that
            header is none of ours and only travels on.

    Raises:
        ApiError: 400, naming the header and what it should be.
    """
    told = {name: value.decode("latin-1").strip() for name, value in headers if name in _HINTS}
    if not told:
        return NO_HINTS
    priority = _first(told, PRIORITY)
    level = _objective(told, objectives or {}) if priority is None else _priority(*priority)
    return Hints(
        session_id=_name(_first(told, SESSION)) or None,
        tenant=_name(_first(told, TENANT)),
        priority=Priority.INTERACTIVE if level is None else level,
        says_priority=level is not None,
        ttft_slo_s=_seconds(_first(told, TTFT_SLO)),
        tpot_slo_s=_seconds(_first(told, TPOT_SLO)),
    )


def header_bytes(headers: RawHeaders) -> int:
    """Size of all names and values."""
    return sum(map(len, chain.from_iterable(headers)))


def upstream_headers(
    headers: RawHeaders, *, authorization: str, request_id: str
) -> list[tuple[bytes, bytes]]:
    """What goes to the replica: everything but what belongs to this hop, byte by byte.

    Args:
        headers: the client's; names in lower case.
        authorization: the backend's own, in place of the client's; empty to pass the client's on.
        request_id: given to the engine as `x-request-id` if the client gave none.
    """
    headers = list(headers)
    dropped = _without_nominated(headers, _NOT_UPSTREAM)
    if authorization:
        dropped |= {b"authorization"}
    kept = [header for header in headers if header[0] not in dropped]
    is_named = b"x-request-id" in dict(kept)
    kept.append(_IDENTITY)
    if authorization:
        kept.append((b"authorization", authorization.encode()))
    if not is_named:
        kept.append((b"x-request-id", request_id.encode()))
    return kept


def downstream_headers(headers: RawHeaders) -> list[tuple[bytes, bytes]]:
    """What of a replica's headers goes to the client; the caller frames the body anew.

    Args:
        headers: the replica's; names in lower case.
    """
    dropped = _without_nominated(headers, _NOT_DOWNSTREAM)
    return [header for header in headers if header[0] not in dropped]


def _without_nominated(headers: RawHeaders, dropped: frozenset[bytes]) -> frozenset[bytes]:
    """These, and those that `Connection`, however often it is there, declares to be of this hop only."""
    declared = [value for name, value in headers if name == b"connection"]
    if not declared:
        return dropped
    return dropped.union(token.strip().lower() for value in declared for token in value.split(b","))


def _first(told: dict[bytes, str], names: tuple[bytes, ...]) -> tuple[bytes, str] | None:
    for name in names:
        if name in told:
            return name, told[name]
    return None


def _name(hint: tuple[bytes, str] | None) -> str:
    if hint is None or not hint[1]:
        return ""
    if not _NAME.fullmatch(hint[1]):
        raise _refusal(hint[0], "use 1 to 256 printable ASCII characters without blanks")
    return hint[1]


def _priority(name: bytes, value: str) -> Priority:
    priority = _PRIORITIES.get(value.lower())
    if priority is None:
        raise _refusal(name, "use 0 to 3, or interactive, semi-interactive, batch, background")
    return priority


def _objective(told: Mapping[bytes, str], objectives: Mapping[str, int]) -> Priority | None:
    name = told.get(OBJECTIVE, "")
    if not name or not objectives:
        return None
    if name not in objectives:
        raise _refusal(OBJECTIVE, f"use one of: {', '.join(sorted(objectives))}")
    return Priority(objectives[name])


def _seconds(hint: tuple[bytes, str] | None) -> float | None:
    if hint is None:
        return None
    milliseconds = float(hint[1]) if _MILLISECONDS.fullmatch(hint[1]) else 0.0
    if milliseconds <= 0.0:
        raise _refusal(hint[0], "use a positive number of milliseconds")
    return milliseconds / 1000.0


def _refusal(name: bytes, fix: str) -> ApiError:
    # The value is not echoed: it may be anything.
    header = name.decode("latin-1")
    return ApiError(400, Code.INVALID_HEADER, f"header {header} is not valid; {fix}", param=header)
