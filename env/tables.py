"""The tables of a cluster's memory (`layout.py`), for compiled functions.

They take one argument for all of it, `memory`: the buffer's address. The functions below give its
tables, most of them arrays of C structs (numba records): `replicas_in(memory)[r].running`. They cost a
few instructions; passing the arrays themselves took most of the engine's time. Whoever calls keeps the
buffer alive.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from steersman.env.jit import inner
from steersman.env.layout import (
    ADAPTER,
    BIRTH,
    CHANGE,
    CLUSTER,
    END,
    ENTRY,
    EVENT,
    FACTS,
    H_ADAPTER,
    H_ADAPTERS,
    H_BINS,
    H_BIRTH,
    H_CHANGE,
    H_CHANGES,
    H_CHILDREN,
    H_CLUSTER,
    H_DUE,
    H_END,
    H_ENTRIES,
    H_ENTRY,
    H_EVENT,
    H_EVENTS,
    H_FACTS,
    H_FLIGHT,
    H_FLIGHTS,
    H_HASH,
    H_HASH_COUNT,
    H_HASHES,
    H_LEAVES,
    H_LEDGER,
    H_LINK_COUNT,
    H_LINKS,
    H_OUTCOME,
    H_PHASE,
    H_PIPE,
    H_QUEUE,
    H_READS,
    H_REPLICA,
    H_REPLICAS,
    H_ROOT_COUNT,
    H_ROOTS,
    H_ROWS,
    H_RUN,
    H_RUNNING,
    H_SEQUENCE,
    H_SHARE,
    H_SLOTS,
    H_TABLE,
    H_TRACE,
    HEADER,
    OUTCOME,
    PIPE,
    PRIORITIES,
    REPLICA,
    SEQUENCE,
    SHARE,
    TRACE,
)
from steersman.predictors.ledger import STATE_WIDTH


def _pointer_of(typing_context: Any, address: Any) -> Any:  # noqa: ARG001
    """An integer as a pointer."""

    def generate(context: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.inttoptr(arguments[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), generate


_pointer: Any = intrinsic(_pointer_of)
_table: Any = numba.carray  # type: ignore[attr-defined]


@inner
def _header(memory: int) -> Any:
    return _table(_pointer(memory), (HEADER,), np.int64)


@inner
def floats_at(address: int, count: int) -> Any:
    """(count,) float32 outside the buffer."""
    return _table(_pointer(address), (count,), np.float32)


@inner
def doubles_at(address: int, count: int) -> Any:
    """(count,) float64 outside the buffer."""
    return _table(_pointer(address), (count,), np.float64)


@inner
def words_at(address: int, count: int) -> Any:
    """(count,) int64 outside the buffer."""
    return _table(_pointer(address), (count,), np.int64)


@inner
def common_in(memory: int) -> Any:
    """The CLUSTER record."""
    return _table(_pointer(memory + _header(memory)[H_CLUSTER]), (1,), CLUSTER)[0]


@inner
def replicas_in(memory: int) -> Any:
    """(n,) REPLICA"""
    h = _header(memory)
    return _table(_pointer(memory + h[H_REPLICA]), (h[H_REPLICAS],), REPLICA)


@inner
def ledger_in(memory: int) -> Any:
    """(n, STATE_WIDTH): what the router knows."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_LEDGER]), (h[H_REPLICAS], STATE_WIDTH), np.float64)


@inner
def sequences_in(memory: int) -> Any:
    """(slots,) SEQUENCE"""
    h = _header(memory)
    return _table(_pointer(memory + h[H_SEQUENCE]), (h[H_SLOTS],), SEQUENCE)


@inner
def facts_in(memory: int) -> Any:
    """(slots,) FACTS"""
    h = _header(memory)
    return _table(_pointer(memory + h[H_FACTS]), (h[H_SLOTS],), FACTS)


@inner
def run_in(memory: int) -> Any:
    """(n, most max_num_seqs): slots that run, in the order in which they were admitted."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_RUN]), (h[H_REPLICAS], h[H_RUNNING]), np.int32)


@inner
def ends_in(memory: int) -> Any:
    """(n, most max_num_seqs) END: a heap of the sequences that decode, where a replica leaps."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_END]), (h[H_REPLICAS], h[H_RUNNING]), END)


@inner
def phases_in(memory: int) -> Any:
    """(n, most block_tokens): decoding sequences by their tokens less the counter, modulo a block."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_PHASE]), (h[H_REPLICAS], h[H_BINS]), np.int32)


@inner
def due_in(memory: int) -> Any:
    """(2, 2 * leaves): trees of when each replica must be looked at next; see `agenda.py`."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_DUE]), (2, 2 * h[H_LEAVES]), np.float64)


@inner
def queue_in(memory: int) -> Any:
    """(n, PRIORITIES, 2): head and tail of each waiting queue."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_QUEUE]), (h[H_REPLICAS], PRIORITIES, 2), np.int32)


@inner
def entries_in(memory: int) -> Any:
    """(n, entries) ENTRY"""
    h = _header(memory)
    return _table(_pointer(memory + h[H_ENTRY]), (h[H_REPLICAS], h[H_ENTRIES]), ENTRY)


@inner
def table_in(memory: int) -> Any:
    """(n, power of two): entry by hash, open addressing."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_HASH]), (h[H_REPLICAS], h[H_TABLE]), np.int32)


@inner
def apart_from_prefixes(memory: int) -> tuple[int, int]:
    """Offsets in bytes: all but the tables of entries lies before the first and from the second on."""
    h = _header(memory)
    return h[H_ENTRY], h[H_BIRTH]


@inner
def births_in(memory: int) -> Any:
    """(children,) BIRTH: a heap of children whose parents ended."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_BIRTH]), (h[H_CHILDREN],), BIRTH)


@inner
def events_in(memory: int) -> Any:
    """(events,) EVENT: tokens, where they are recorded."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_EVENT]), (h[H_EVENTS],), EVENT)


@inner
def changes_in(memory: int) -> Any:
    """(changes,) CHANGE: the schedule, in order of time."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_CHANGE]), (h[H_CHANGES],), CHANGE)


@inner
def shares_in(memory: int) -> Any:
    """(n,) SHARE"""
    h = _header(memory)
    return _table(_pointer(memory + h[H_SHARE]), (h[H_REPLICAS],), SHARE)


@inner
def adapters_in(memory: int) -> Any:
    """(n, most adapters) ADAPTER: what each replica has loaded."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_ADAPTER]), (h[H_REPLICAS], h[H_ADAPTERS]), ADAPTER)


@inner
def pipes_in(memory: int) -> Any:
    """(n,) PIPE"""
    h = _header(memory)
    return _table(_pointer(memory + h[H_PIPE]), (h[H_REPLICAS],), PIPE)


@inner
def flight_in(memory: int) -> Any:
    """(n, most max_num_seqs, or 0 without pipelines): slots that are in stages."""
    h = _header(memory)
    return _table(_pointer(memory + h[H_FLIGHT]), (h[H_REPLICAS], h[H_FLIGHTS]), np.int32)


@inner
def outcomes_in(memory: int) -> Any:
    """(rows,) OUTCOME"""
    h = _header(memory)
    return _table(_pointer(memory + h[H_OUTCOME]), (h[H_ROWS],), OUTCOME)


@inner
def trace_in(memory: int) -> Any:
    """(rows,) TRACE"""
    h = _header(memory)
    return _table(_pointer(h[H_TRACE]), (h[H_ROWS],), TRACE)


@inner
def roots_in(memory: int) -> Any:
    """Rows without a parent, by arrival."""
    h = _header(memory)
    return _table(_pointer(h[H_ROOTS]), (h[H_ROOT_COUNT],), np.int64)


@inner
def hashes_in(memory: int) -> Any:
    """Hashes of all prefix blocks, request by request."""
    h = _header(memory)
    return _table(_pointer(h[H_HASHES]), (h[H_HASH_COUNT],), np.int64)


@inner
def reads_in(memory: int) -> Any:
    """(n, most max_num_seqs + 1): by decoding sequences, the factor on `decode_base_s`; read only."""
    h = _header(memory)
    return _table(_pointer(h[H_READS]), (h[H_REPLICAS], h[H_RUNNING] + 1), np.float64)


@inner
def links_in(memory: int) -> Any:
    """Addresses of machine code; see `links.py`."""
    h = _header(memory)
    return _table(_pointer(h[H_LINKS]), (h[H_LINK_COUNT],), np.int64)
