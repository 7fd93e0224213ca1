"""Is a log fit to learn from? A policy learns whatever it is told, so what is told is looked at first.

A few records that cannot be true are left out. Many of them mean that something is wrong which leaving
them out does not mend, and so do some things that no single record shows: then nothing is learned, and
the reasons say what to do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from steersman.agents.retrain.settings import SoundnessSettings
from steersman.predictors import ledger as L
from steersman.predictors.features import REQUEST_FEATURES
from steersman.traces.errors import TraceError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Status

TIME, NUMBERS, LABELS, DECISION, LAYOUT, DOUBLE = (
    "impossible time of arrival",
    "not a number",
    "impossible outcome",
    "impossible decision",
    "features of another version",
    "a request id that was there before",
)
"""Why a record is left out."""

EARLIEST_UNIX_S = 946_684_800.0
"""The year 2000: clocks that were never set begin before it."""
FUTURE_S = 300.0
MOST_TOKENS = 10_000_000
MOST_E2E_S = 86_400.0
SLICES = 10
"""Parts of the time in which floods are looked for."""
FLOOD = 10.0
"""A tenant's requests in its busiest slice, over those in its usual one, that are a flood."""
FLOOD_SHARE = 0.5
"""Of all requests: smaller floods are part of life."""
STEADY_S = 600.0
"""Two records further apart on the steady clock may be of two routers."""


@dataclass(frozen=True)
class Screened:
    """A log that is fit to learn from."""

    records: tuple[OutcomeRecord, ...]
    """Those that ended well and cannot be faulted, by arrival."""
    read: int
    left_out: Mapping[str, int]
    """Faulty ones, by why."""


def screen(
    records: Sequence[OutcomeRecord], settings: SoundnessSettings, *, now_unix_s: float
) -> Screened:
    """The sound records of a log.

    Args:
        records: in the order of writing.
        now_unix_s: nothing can have arrived later.

    Raises:
        TraceError: the log is not fit to learn from; all reasons, in one line.
    """
    faults: Counter[str] = Counter()
    sound: list[OutcomeRecord] = []
    seen: set[str] = set()
    for record in records:
        why = fault(record, now_unix_s)
        if not why and record.request_id in seen:
            why = DOUBLE
        seen.add(record.request_id)
        if why:
            faults[why] += 1
        elif record.status is Status.OK:
            sound.append(record)
    sound.sort(key=lambda record: record.arrival_unix_s)
    timed = [record for record in records if _came(record, now_unix_s)]
    reasons = [
        *_too_little(sound, settings),
        *_faulty(faults, len(records), settings),
        *_failing(records, settings),
        *_flooded(timed, settings),
        *_jumping(timed, settings),
    ]
    if reasons:
        raise TraceError(f"the log is not fit to learn from: {'; '.join(reasons)}")
    return Screened(tuple(sound), len(records), dict(faults))


def fault(record: OutcomeRecord, now_unix_s: float) -> str:
    """Why a record cannot be true; empty if it can."""
    if not _came(record, now_unix_s):
        return TIME
    if record.status is not Status.OK:
        return ""
    if record.request_features.shape != (len(REQUEST_FEATURES),) or record.state.shape != (
        len(record.replica_ids),
        L.STATE_WIDTH,
    ):
        return LAYOUT
    if not _numbers(record):
        return NUMBERS
    if not _outcome(record):
        return LABELS
    return "" if _decision(record) else DECISION


def _came(record: OutcomeRecord, now_unix_s: float) -> bool:
    """Whether it can have arrived then."""
    return EARLIEST_UNIX_S < record.arrival_unix_s < now_unix_s + FUTURE_S


def _numbers(record: OutcomeRecord) -> bool:
    """Whether what was known is known. Times of scrapes are infinite before the first."""
    known = [record.e2e_s, record.decided_at_s, *((record.ttft_s,) if record.stream else ())]
    return bool(
        np.isfinite(known).all()
        and np.isfinite(record.request_features).all()
        and not np.isnan(record.state).any()
        and np.isfinite(record.match_tokens).all()
    )


def _outcome(record: OutcomeRecord) -> bool:
    """Whether a request can have ended so."""
    output = record.output_tokens or 0
    if not (1 <= record.input_tokens <= MOST_TOKENS and 1 <= output <= MOST_TOKENS):
        return False
    if not 0.0 < record.e2e_s <= MOST_E2E_S or record.queued_s < 0.0:
        return False
    if not record.stream:
        return True
    decoding_s = record.e2e_s - record.ttft_s
    if not (record.ttft_s > 0.0 and decoding_s >= -1e-6):
        return False
    tpot_s = 0.0 if math.isnan(record.tpot_s) else record.tpot_s
    return 0.0 <= tpot_s * (output - 1) <= 1.5 * decoding_s + 0.1


def _decision(record: OutcomeRecord) -> bool:
    """Whether a policy can have decided so."""
    if not 0 <= record.choice < len(record.replica_ids) or len(record.mask) != len(record.replica_ids):
        return False
    return bool(record.mask[record.choice]) and (
        math.isnan(record.propensity) or 0.0 < record.propensity <= 1.0 + 1e-9
    )


def _too_little(sound: Sequence[OutcomeRecord], settings: SoundnessSettings) -> Iterator[str]:
    if len(sound) < settings.least_requests:
        yield (
            f"{len(sound)} sound requests ended well, {settings.least_requests} are needed "
            "(soundness.least_requests): log more traffic"
        )
        return
    span_s = sound[-1].arrival_unix_s - sound[0].arrival_unix_s
    if span_s < settings.least_span_s:
        yield (
            f"they arrived within {span_s:.0f} s, {settings.least_span_s:g} s are needed "
            "(soundness.least_span_s): log for longer"
        )


def _faulty(faults: Counter[str], read: int, settings: SoundnessSettings) -> Iterator[str]:
    for why, count in sorted(faults.items()):
        is_double = why == DOUBLE
        most = settings.most_duplicated if is_double else settings.most_faulty
        if count > most * read:
            key = "most_duplicated" if is_double else "most_faulty"
            yield (
                f"{count} of {read} records have {why}, more than {most:.0%} (soundness.{key}): "
                "find what writes them, or begin after it with --since"
            )


def _failing(records: Sequence[OutcomeRecord], settings: SoundnessSettings) -> Iterator[str]:
    count = Counter(record.status for record in records)
    failed = count[Status.FAILED] + count[Status.UNFINISHED]
    served = failed + count[Status.OK]
    if failed > settings.most_failed * served:
        yield (
            f"{failed} of {served} served requests failed, more than {settings.most_failed:.0%} "
            "(soundness.most_failed): an outage teaches no routing; begin after it with --since"
        )


def _flooded(records: Sequence[OutcomeRecord], settings: SoundnessSettings) -> Iterator[str]:
    """Whether one tenant drowns all others, all the time or in a burst."""
    tenants = Counter(record.tenant for record in records)
    if len(tenants) < 2:
        return
    name, count = tenants.most_common(1)[0]
    share = count / len(records)
    if share > settings.most_tenant_share:
        yield (
            f"tenant '{name}' sent {share:.0%} of all requests, more than "
            f"{settings.most_tenant_share:.0%} (soundness.most_tenant_share): what is learned would be "
            "about nobody else"
        )
        return
    times = np.array([record.arrival_unix_s for record in records])
    own = np.array([record.tenant == name for record in records])
    if share < FLOOD_SHARE:
        return
    edges = np.linspace(times.min(), times.max() + 1e-6, SLICES + 1)
    by_slice, _ = np.histogram(times[own], edges)
    if by_slice.max() > FLOOD * max(float(np.median(by_slice)), 1.0):
        at = edges[int(by_slice.argmax()) + 1]
        yield (
            f"tenant '{name}' sent {share:.0%} of all requests, most of them in a burst: "
            f"begin after it with --since {at:.0f}"
        )


def _jumping(records: Sequence[OutcomeRecord], settings: SoundnessSettings) -> Iterator[str]:
    """Whether the wall clock jumped while the steady one went on."""
    decided = [
        (record.arrival_unix_s + record.queued_s, record.decided_at_s)
        for record in records
        if math.isfinite(record.decided_at_s)
    ]
    if len(decided) < 2:
        return
    wall, steady = np.diff(np.array(decided), axis=0).T
    slip = np.where(np.abs(steady) < STEADY_S, wall - steady, 0.0)
    jumps = np.flatnonzero(np.abs(slip) > settings.most_jump_s)
    if len(jumps):
        last = int(jumps[-1])
        yield (
            f"the clock jumped {len(jumps)} times, last by {slip[last]:+.0f} s "
            f"(soundness.most_jump_s): begin after it with --since {decided[last + 1][0]:.0f}"
        )
