"""What the log says of decisions and their outcomes, as arrays: what the models saw, what came of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L
from steersman.predictors.features import (
    LENGTH_FEATURES,
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
    replica_features,
)
from steersman.predictors.window import StratifiedWindow, latency_bucket
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Status

CHUNK = 2_048
"""Records turned into features at once: bounds memory."""
_HARDWARE = [REPLICA_INDEX[name] for name in ("decode_base_s", "prefill_token_s", "weights_gib")]
_BATCH_USE = REPLICA_INDEX["batch_use"]
_WAITING = REPLICA_INDEX["waiting"]


@dataclass(frozen=True)
class LoggedOutcomes:
    """n requests that ended well, in the order in which they ended."""

    replicas: NDArray[np.float32]
    """(n, len(REPLICA_FEATURES)): the chosen replica, as known at the decision."""
    requests: NDArray[np.float32]
    """(n, len(REQUEST_FEATURES))"""
    ttft_s: NDArray[np.float64]
    """(n,) from the decision; NaN without streaming."""
    tpot_s: NDArray[np.float64]
    """(n,) NaN without streaming, 0 for an answer of one token."""
    output_tokens: NDArray[np.float64]
    """(n,)"""
    ended_s: NDArray[np.float64]
    """(n,) seconds since 1970."""

    def __len__(self) -> int:
        return len(self.ended_s)

    def take(self, rows: Sequence[int] | NDArray[np.intp]) -> LoggedOutcomes:
        """Some of them."""
        picked = np.asarray(rows, dtype=np.intp)
        return LoggedOutcomes(*(getattr(self, field.name)[picked] for field in fields(self)))

    @property
    def streamed(self) -> LoggedOutcomes:
        """Those whose latencies were seen."""
        return self.take(np.flatnonzero(self.ttft_s > 0.0))

    @property
    def length_rows(self) -> NDArray[np.float32]:
        """(n, len(LENGTH_FEATURES))"""
        return self.requests[:, : len(LENGTH_FEATURES)]

    def windowed(self, capacity: int, held_out: int) -> tuple[LoggedOutcomes, LoggedOutcomes]:
        """What to learn from, stratified, and the newest `held_out` of them; see `window.py`."""
        window = StratifiedWindow[int](capacity, held_out)
        for row in range(len(self)):
            known = self.replicas[row]
            hardware = tuple(known[_HARDWARE].tolist())
            use, waiting = float(known[_BATCH_USE]), float(known[_WAITING])
            window.add(row, latency_bucket(hardware, use, waiting, float(self.ttft_s[row])))
        return self.take(window.train), self.take(window.held)


def teaches(record: OutcomeRecord) -> bool:
    """Whether an outcome says anything about how the next will go.

    Not what failed, was cancelled or refused; not a second attempt, whose waiting began elsewhere; not
    the first answers of a replica that had just come up; and not what another version logged, whose
    features are others.
    """
    return bool(
        record.status is Status.OK
        and record.retries == 0
        and 0 <= record.choice < len(record.state)
        and record.state.shape[1:] == (L.STATE_WIDTH,)
        and record.match_tokens.shape == (len(record.state),)
        and record.request_features.shape == (len(REQUEST_FEATURES),)
        and (record.output_tokens or 0) >= 1
        and math.isfinite(record.decided_at_s)
        and math.isfinite(record.e2e_s)
        and not L.is_cold(record.state[record.choice])
    )


class Taught(NamedTuple):
    """What is kept of a record while the log is read: a few hundred bytes."""

    state: NDArray[np.float64]
    """(STATE_WIDTH,) of the chosen replica."""
    request: NDArray[np.float32]
    match_tokens: float
    decided_at_s: float
    ttft_s: float
    tpot_s: float
    output_tokens: float
    ended_s: float


def taught(record: OutcomeRecord) -> Taught | None:
    """What a record teaches, if anything; for `read_newest`."""
    if not teaches(record):
        return None
    return Taught(
        state=record.state[record.choice].copy(),
        request=record.request_features,
        match_tokens=float(record.match_tokens[record.choice]),
        decided_at_s=record.decided_at_s,
        ttft_s=record.ttft_s - record.queued_s,
        tpot_s=record.tpot_s,
        output_tokens=float(record.output_tokens or 0),
        ended_s=record.arrival_unix_s + record.e2e_s,
    )


def logged_outcomes(lessons: Iterable[Taught]) -> LoggedOutcomes:
    """As arrays, sorted by when they ended."""
    ordered = sorted(lessons, key=lambda lesson: lesson.ended_s)
    n = len(ordered)
    state = np.zeros((n, 1, L.STATE_WIDTH))
    requests = np.zeros((n, len(REQUEST_FEATURES)), dtype=np.float32)
    for i, lesson in enumerate(ordered):
        state[i, 0] = lesson.state
        requests[i] = lesson.request
    columns = np.array([lesson[2:] for lesson in ordered], dtype=np.float64).reshape(n, 6)
    match_tokens, decided_at_s, ttft_s, tpot_s, output_tokens, ended_s = columns.T
    features = np.zeros((n, 1, len(REPLICA_FEATURES)), dtype=np.float32)
    for start in range(0, n, CHUNK):
        part = slice(start, start + CHUNK)
        features[part] = replica_features(
            state[part], requests[part], match_tokens[part, None], decided_at_s[part]
        )
    return LoggedOutcomes(features[:, 0], requests, ttft_s, tpot_s, output_tokens, ended_s)
