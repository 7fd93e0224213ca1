"""What happened to the requests of a simulation, as columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env import layout as at
from steersman.env.requests import RequestTable
from steersman.traces.schema import Outcome, Status
from steersman.traces.trace import Trace

Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]

STATUSES = tuple(Status)
"""What `OutcomeTable.status` counts in."""
_STATUS_OF_CODE = np.array(
    [
        STATUSES.index(status)
        for status in (
            Status.UNFINISHED,  # PENDING: it has not ended yet
            Status.OK,
            Status.FAILED,
            Status.REJECTED,
            Status.CANCELLED,
            Status.UNFINISHED,
        )
    ],
    dtype=np.int8,
)


@dataclass(frozen=True, slots=True)
class OutcomeTable:
    """n requests, one row per row of the trace. All columns have shape (n,)."""

    request_ids: tuple[str, ...]
    status: NDArray[np.int8]
    """Position in `STATUSES`; what still runs is `unfinished`."""
    replica: Int64
    """-1: no replica was asked."""
    arrival_s: Float64
    """As simulated: a session's later turns follow their parents. NaN: it never arrived."""
    ttft_s: Float64
    """NaN without a first token."""
    tpot_s: Float64
    """0 for a single token; NaN unless it ended well."""
    e2e_s: Float64
    """NaN unless it ended well."""
    input_tokens: Int64
    output_tokens: Int64
    """Produced."""
    cached_tokens: Int64
    preemptions: Int64
    priority: NDArray[np.int8]
    weight: Float64
    """Of its class in J."""
    ttft_slo_s: Float64
    tpot_slo_s: Float64

    def __len__(self) -> int:
        return len(self.status)

    @property
    def ok(self) -> NDArray[np.bool_]:
        """Which ended well."""
        ok: NDArray[np.bool_] = self.status == STATUSES.index(Status.OK)
        return ok

    @property
    def slo_met(self) -> NDArray[np.bool_]:
        """Which ended well and within both service levels."""
        met: NDArray[np.bool_] = (
            self.ok & (self.ttft_s <= self.ttft_slo_s) & (self.tpot_s <= self.tpot_slo_s)
        )
        return met

    def outcome(self, row: int) -> Outcome:
        """One row."""
        return Outcome(
            request_id=self.request_ids[row],
            status=STATUSES[self.status[row]],
            replica=int(self.replica[row]),
            input_tokens=int(self.input_tokens[row]),
            output_tokens=int(self.output_tokens[row]),
            cached_tokens=int(self.cached_tokens[row]),
            arrival_s=float(self.arrival_s[row]),
            ttft_s=float(self.ttft_s[row]),
            tpot_s=float(self.tpot_s[row]),
            e2e_s=float(self.e2e_s[row]),
            preemptions=int(self.preemptions[row]),
        )


def outcome_table(trace: Trace, table: RequestTable, records: NDArray[Any]) -> OutcomeTable:
    """Read the engine's OUTCOME records."""
    status = _STATUS_OF_CODE[records["status"]]
    ok = records["status"] == at.OK
    produced = records["produced"].astype(np.int64)
    ttft_s = records["first_token_s"] - records["arrival_s"]
    e2e_s = np.where(ok, records["end_s"] - records["arrival_s"], np.nan)
    decoding_s = np.where(ok, records["end_s"] - records["first_token_s"], np.nan)
    return OutcomeTable(
        request_ids=trace.request_ids,
        status=status,
        replica=records["replica"].astype(np.int64),
        arrival_s=records["arrival_s"].copy(),
        ttft_s=ttft_s,
        tpot_s=decoding_s / np.maximum(produced - 1, 1),
        e2e_s=e2e_s,
        input_tokens=trace.input_tokens,
        output_tokens=produced,
        cached_tokens=records["cached_tokens"].astype(np.int64),
        preemptions=records["preemptions"].astype(np.int64),
        priority=trace.priority,
        weight=table.weight,
        ttft_slo_s=table.ttft_slo_s,
        tpot_slo_s=table.tpot_slo_s,
    )
