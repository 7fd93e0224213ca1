"""Many clusters in one call, for `vector.py`: each function loops over the addresses of memories."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.belief import believe, forget_lost, match_believed
from steersman.env.dispatching import dispatch
from steersman.env.engine import cost, next_request_by
from steersman.env.jit import njit
from steersman.env.layout import NONE
from steersman.env.tables import (
    common_in,
    doubles_at,
    floats_at,
    ledger_in,
    replicas_in,
    trace_in,
    words_at,
)

Int64 = NDArray[np.int64]
Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


@njit
def next_requests(memories: Int64, rows: Int64, until_s: Float64) -> None:
    """Advance those without a pending request to the next by `until_s`; `rows`: all pending, or NONE."""
    for i in range(memories.shape[0]):
        pending = common_in(memories[i]).pending
        rows[i] = next_request_by(memories[i], until_s[i]) if pending == NONE else pending


@njit
def gather(
    memories: Int64,
    beliefs: Int64,
    tables: Int64,
    state: Float64,
    now_s: Float64,
    request: Float32,
    match_tokens: Float64,
) -> None:
    """Copy the ledgers and clocks, and what is known of the pending requests.

    Rows of padding are left as they are: nobody reads them.

    Args:
        beliefs: addresses of their memories (`belief.py`), 0 where nothing can match.
        tables: addresses of the requests' features, a row per row of the trace.
    """
    matched = np.zeros(state.shape[1], dtype=np.int64)
    for i in range(memories.shape[0]):
        row = common_in(memories[i]).pending
        if row != NONE and beliefs[i] != 0:
            forget_lost(beliefs[i], memories[i])
        ledger = ledger_in(memories[i])
        replicas = ledger.shape[0]
        state[i, :replicas] = ledger
        now_s[i] = common_in(memories[i]).now_s
        match_tokens[i] = 0.0
        if row == NONE:
            request[i] = 0.0
            continue
        request[i] = floats_at(tables[i] + row * request.shape[1] * 4, request.shape[1])
        if beliefs[i] != 0:
            source = trace_in(memories[i])[row]
            match_believed(beliefs[i], source.hash_start, source.hash_count, matched)
            block_tokens = replicas_in(beliefs[i])[0].entry_tokens
            for r in range(replicas):
                match_tokens[i, r] = matched[r] * block_tokens


@njit
def identities(memories: Int64, tables: Int64, identity: Int64) -> None:
    """Who asks: `predictors/identity.py` of the pending requests, 0 without one.

    Args:
        tables: addresses of the requests' identities, a row per row of the trace.
    """
    for i in range(memories.shape[0]):
        row = common_in(memories[i]).pending
        if row == NONE:
            identity[i] = 0
        else:
            identity[i] = words_at(tables[i] + row * identity.shape[1] * 8, identity.shape[1])


@njit
def clocks(memories: Int64, now_s: Float64) -> None:
    """The time of each."""
    for i in range(memories.shape[0]):
        now_s[i] = common_in(memories[i]).now_s


@njit
def full(memories: Int64, no_room: NDArray[np.bool_]) -> None:
    """Which of them have no free slot."""
    for i in range(memories.shape[0]):
        no_room[i] = common_in(memories[i]).free_slots == 0


@njit
def dispatch_all(
    memories: Int64, beliefs: Int64, choices: Int64, output_p50: Int64, raw: Float64
) -> None:
    """Dispatch each pending request.

    Args:
        output_p50: addresses of the predictions, one per row of the trace.
        raw: (clusters, 4), uncached tokens, raw TTFT and TPOT, and match fraction of the choice.
    """
    for i in range(memories.shape[0]):
        row = common_in(memories[i]).pending
        if row == NONE:
            continue
        p50 = doubles_at(output_p50[i] + row * 8, 1)[0]
        slot = dispatch(memories[i], choices[i], p50, raw[i, 0], raw[i, 1], raw[i, 2], raw[i, 3])
        if slot != NONE and beliefs[i] != 0:
            source = trace_in(memories[i])[row]
            forget_lost(beliefs[i], memories[i])
            believe(beliefs[i], memories[i], choices[i], source.hash_start, source.hash_count)


@njit
def costs(memories: Int64, total: Float64) -> None:
    """The accrued cost of each."""
    for i in range(memories.shape[0]):
        total[i] = cost(memories[i])
