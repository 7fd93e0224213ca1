"""Many clusters in one call, for `vector.py`: each function loops over the addresses of memories."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.engine import cost, dispatch, next_request_by
from steersman.env.jit import njit
from steersman.env.layout import NONE, common_in, ledger_in
from steersman.predictors.ledger import HEALTHY

Int64 = NDArray[np.int64]
Float64 = NDArray[np.float64]


@njit
def next_requests(memories: Int64, rows: Int64, until_s: Float64) -> None:
    """Advance those without a pending request to the next by `until_s`; `rows`: all pending, or NONE."""
    for i in range(memories.shape[0]):
        pending = common_in(memories[i]).pending
        rows[i] = next_request_by(memories[i], until_s[i]) if pending == NONE else pending


@njit
def gather(memories: Int64, state: Float64, now_s: Float64) -> None:
    """Copy the ledgers and clocks.

    A row of padding repeats the cluster's first replica, unhealthy, so that formulas stay finite.
    """

    for i in range(memories.shape[0]):
        ledger = ledger_in(memories[i])
        replicas = ledger.shape[0]
        state[i, :replicas] = ledger
        for r in range(replicas, state.shape[1]):
            state[i, r] = ledger[0]
            state[i, r, HEALTHY] = 0.0
        now_s[i] = common_in(memories[i]).now_s


@njit
def dispatch_all(
    memories: Int64, choices: Int64, output_p50: Float64, raw: Float64, accepted: NDArray[np.bool_]
) -> None:
    """Dispatch each pending request. `raw`: (clusters, 3) uncached, raw TTFT and TPOT of the choice."""
    for i in range(memories.shape[0]):
        if common_in(memories[i]).pending == NONE:
            accepted[i] = False
        else:
            slot = dispatch(memories[i], choices[i], output_p50[i], raw[i, 0], raw[i, 1], raw[i, 2])
            accepted[i] = slot != NONE


@njit
def costs(memories: Int64, total: Float64) -> None:
    """The accrued cost of each."""
    for i in range(memories.shape[0]):
        total[i] = cost(memories[i])
