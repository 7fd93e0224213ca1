"""What the engine reads of a trace: it never changes, and all copies of a cluster share it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env import layout as at
from steersman.env.chains import chained
from steersman.env.requests import RequestTable
from steersman.traces.trace import Trace


@dataclass(frozen=True, slots=True)
class StaticTrace:
    """What the engine reads of a trace. Shared by all copies of a cluster, never written."""

    records: NDArray[Any]
    """(rows,) TRACE"""
    roots: NDArray[np.int64]
    hashes: NDArray[np.int64]
    block_tokens: int
    """0: nothing is shared."""
    children: int
    chained: bool = False
    """Whether each hash stands for all the blocks before it too (`chains.py`)."""


def static_trace(
    trace: Trace, table: RequestTable, patience_s: float | None, *, priorities: bool = True
) -> StaticTrace:
    """What the engine reads of a trace; without `priorities` all requests are alike to it."""
    n = len(trace)
    records: NDArray[Any] = np.zeros(n, dtype=at.TRACE)
    records["input_tokens"] = np.maximum(trace.input_tokens, 1)
    records["output_tokens"] = np.maximum(trace.output_tokens, 1)
    if priorities:
        records["priority"] = np.clip(trace.priority, 0, at.PRIORITIES - 1)
    records["hash_start"] = trace.block_offsets[:-1]
    records["hash_count"] = np.diff(trace.block_offsets)
    records["think_time_s"] = np.maximum(trace.think_time_s, 0.0)
    records["arrival_s"] = trace.arrival_s
    records["weight"] = table.weight
    records["ttft_slo_s"] = table.ttft_slo_s
    records["tpot_slo_s"] = table.tpot_slo_s
    records["patience_s"] = patience_s or 0.0
    records["adapter"] = trace.lora
    records["first_child"] = at.NONE
    records["next_sibling"] = at.NONE
    children = np.flatnonzero(trace.parent >= 0)
    for child in children[::-1].tolist():
        parent = int(trace.parent[child])
        records["next_sibling"][child] = records["first_child"][parent]
        records["first_child"][parent] = child
    return StaticTrace(
        records=records,
        roots=np.flatnonzero(trace.parent < 0),
        hashes=np.ascontiguousarray(trace.block_hashes),
        block_tokens=trace.block_tokens if len(trace.block_hashes) else 0,
        children=len(children),
        chained=bool(len(trace.block_hashes)) and chained(trace.block_hashes, trace.block_offsets),
    )


def as_recorded(trace: StaticTrace, arrival_s: NDArray[np.float64]) -> StaticTrace:
    """The same requests, each at its recorded time, whatever becomes of the turn before it.

    Args:
        arrival_s: (rows,); NaN where a request never arrived: it does not now.
    """
    records = trace.records.copy()
    records["arrival_s"] = arrival_s
    records["first_child"] = at.NONE
    records["next_sibling"] = at.NONE
    came = np.argsort(arrival_s, kind="stable")[: np.count_nonzero(~np.isnan(arrival_s))]
    return replace(trace, records=records, roots=came, children=0)
