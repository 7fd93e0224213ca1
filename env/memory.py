"""The Python side of a cluster's memory: allocate it, look into it, copy it, enlarge it."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env import layout as at
from steersman.env.links import ADDRESSES
from steersman.env.static_trace import StaticTrace
from steersman.predictors import ledger as L
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ReplicaSpec, Staleness
from steersman.traces.schema import Batching

_ALIGN = 64
"""Bytes of a cache line."""
_LARGE = 4 << 20
"""Bytes of a copy that the allocator would not find room for among what was freed."""
_Place = tuple[slice, tuple[int, ...], np.dtype[Any]]
"""Where a table lies, its shape and type."""


class Memory:
    """One buffer and views of its tables (see `layout.py` for what is in them).

    Args:
        replicas: of one pool.
        trace: kept alive as long as the memory is.
        slots: requests that can be in flight at once; `grow` adds more.
        events: room in the token log; 0 records no tokens.
        changes: (changes,) CHANGE in order of time; None: nothing is scheduled.
        most_adapters: loaded on a replica at once; 0: adapters cost nothing.
        stepped: play every iteration, even where many could be played at once.
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaSpec],
        trace: StaticTrace,
        *,
        staleness: Staleness,
        prefix_cache: bool,
        seed: int,
        slots: int,
        events: int = 0,
        changes: NDArray[Any] | None = None,
        most_adapters: int = 0,
        stepped: bool = False,
    ) -> None:
        sharing = prefix_cache and trace.block_tokens > 0
        most_entries = 0
        if sharing:
            most_entries = max(_entries(spec, trace.block_tokens) for spec in replicas)
        self.trace = trace
        self.reads = _reads(replicas)
        self._allocate(
            {
                at.H_REPLICAS: len(replicas),
                at.H_SLOTS: slots,
                at.H_ROWS: len(trace.records),
                at.H_RUNNING: max(spec.profile.max_num_seqs for spec in replicas),
                at.H_ENTRIES: most_entries,
                at.H_TABLE: 1 << (2 * most_entries + 1).bit_length(),
                at.H_CHILDREN: trace.children,
                at.H_EVENTS: events,
                at.H_CHANGES: 0 if changes is None else len(changes),
                at.H_ADAPTERS: most_adapters,
                at.H_FLIGHTS: _flights(replicas),
                at.H_BINS: max(spec.profile.block_tokens for spec in replicas),
                at.H_LEAVES: 1 << (len(replicas) - 1).bit_length(),
            }
        )
        cluster = self.cluster
        cluster["scrape_interval_s"] = staleness.scrape_interval_s
        cluster["scrape_jitter"] = staleness.jitter
        cluster["scrape_loss"] = staleness.loss
        cluster["seed"] = seed & (2**62 - 1)
        cluster["unborn"] = trace.children
        cluster["pending"] = at.NONE
        cluster["held_since_s"] = np.inf
        cluster["free_slot"] = at.NONE
        cluster["transfers"] = at.NONE
        cluster["prefix_cache"] = prefix_cache
        cluster["next_change_s"] = np.inf
        if changes is not None and len(changes):
            self.changes[:] = changes
            cluster["next_change_s"] = changes["at_s"][0]
        self.shares["gpu"] = at.NONE
        self.adapters["adapter"] = at.NONE
        agenda = events == 0 and not stepped
        cluster["agenda"] = agenda
        cluster["segments"] = sharing and agenda and trace.chained
        self._free(0)
        self.queue[:] = at.NONE
        self.outcomes["arrival_s"] = np.nan
        self.outcomes["first_token_s"] = np.nan
        self.outcomes["end_s"] = np.nan
        self.outcomes["replica"] = at.NONE
        self.outcomes["status"] = at.PENDING
        rng = np.random.default_rng([seed & (2**62 - 1), 0x5C4A9E])
        for row, spec in enumerate(replicas):
            self._describe(row, spec, trace.block_tokens if sharing else 0)
            # The pool is idle and was scraped just now; the next scrapes are spread over the interval.
            self.ledger[row] = L.new_row(spec.profile)
            L.on_scrape(self.ledger[row], 0.0, 0.0, 0.0, 0.0, prefix_queries=0.0, prefix_hits=0.0)
            self.replicas["next_scrape_s"][row] = rng.random() * staleness.scrape_interval_s
            self.replicas["fast"][row] = agenda and leaps(spec)
            if spec.standby:
                self.replicas["phase"][row] = at.GONE
                self.replicas["billed_from_s"][row] = np.inf
                self.ledger[row, L.HEALTHY] = 0.0
        # Nothing is known to be due: each replica is looked at once.
        leaves = self.due.shape[1] // 2
        self.due[:, leaves:] = np.inf
        self.due[:, leaves : leaves + len(replicas)] = -np.inf
        for node in range(leaves - 1, 0, -1):
            self.due[:, node] = self.due[:, 2 * node : 2 * node + 2].min(axis=1)

    @property
    def free_slots(self) -> int:
        """Requests that can still be put in flight."""
        return int(self._cluster_ints[_FREE_SLOTS])

    @property
    def pending(self) -> int:
        """The row that waits for a decision; NONE if there is none."""
        return int(self._cluster_ints[_PENDING])

    @property
    def now_s(self) -> float:
        """The cluster's clock."""
        return float(self._now[0])

    def copy(self) -> Memory:
        """An independent cluster in the same state: one copy of the buffer."""
        twin = Memory.__new__(Memory)
        twin.trace = self.trace
        twin.reads = self.reads
        twin._places = self._places
        twin._adopt(_aligned_copy(self.buffer))
        return twin

    def grow(self, slots: int, trace: StaticTrace | None = None, events: int | None = None) -> None:
        """Make room for more requests in flight, and for the rows of a longer trace.

        Args:
            slots: not fewer than there are.
        """
        old = Memory.__new__(Memory)
        old.trace = self.trace
        old._places = self._places
        old._adopt(self.buffer)
        sizes = {key: int(old.header[key]) for key in (*_SIZES, *_MORE_SIZES)}
        sizes[at.H_SLOTS] = slots
        if events is not None:
            sizes[at.H_EVENTS] = events
        if trace is not None:
            self.trace = trace
            sizes[at.H_ROWS] = len(trace.records)
        self._allocate(sizes)
        for name in _KEPT:
            getattr(self, name)[...] = getattr(old, name)
        for name in ("sequences", "facts", "outcomes", "events"):
            getattr(self, name)[: len(getattr(old, name))] = getattr(old, name)
        self._free(len(old.sequences))

    def use_trace(self, trace: StaticTrace) -> None:
        """Read from another trace of the same number of rows from now on."""
        self.trace = trace
        self._point(self.header)

    def _point(self, header: NDArray[np.int64]) -> None:
        """Write down where the trace lies."""
        header[at.H_TRACE] = self.trace.records.ctypes.data
        header[at.H_ROOTS] = self.trace.roots.ctypes.data
        header[at.H_ROOT_COUNT] = len(self.trace.roots)
        header[at.H_HASHES] = self.trace.hashes.ctypes.data
        header[at.H_HASH_COUNT] = len(self.trace.hashes)
        header[at.H_READS] = self.reads.ctypes.data
        header[at.H_LINKS] = ADDRESSES.ctypes.data
        header[at.H_LINK_COUNT] = len(ADDRESSES)

    def _allocate(self, sizes: dict[int, int]) -> None:
        header = np.zeros(at.HEADER, dtype=np.int64)
        for key, size in sizes.items():
            header[key] = size
        self._point(header)
        end = header.nbytes
        self._places: dict[int, _Place] = {}
        for key, (shape, dtype) in _tables(header).items():
            end += -end % _ALIGN
            header[key] = end
            start, end = end, end + math.prod(shape) * dtype.itemsize
            self._places[key] = slice(start, end), shape, dtype
        buffer = _aligned(end)
        buffer[:] = 0
        buffer[: header.nbytes] = header.view(np.uint8)
        self._adopt(buffer)
        self.table[:] = at.NONE

    def _adopt(self, buffer: NDArray[np.uint8]) -> None:
        """Use a buffer that is laid out already."""
        self.buffer = buffer
        self.address = int(buffer.__array_interface__["data"][0])
        self.header = buffer[: 8 * at.HEADER].view(np.int64)
        self.cluster = self._table(at.H_CLUSTER)
        self._cluster_ints = self.cluster.view(np.int64)
        self._now = self.cluster["now_s"]
        self.replicas = self._table(at.H_REPLICA)
        self.ledger: NDArray[np.float64] = self._table(at.H_LEDGER)

    def _table(self, key: int) -> NDArray[Any]:
        place, shape, dtype = self._places[key]
        return self.buffer[place].view(dtype).reshape(shape)

    def __getattr__(self, name: str) -> NDArray[Any]:
        """Tables that are rarely looked into from Python."""
        if name in _RARE:
            return self._table(_RARE[name])
        raise AttributeError(name)

    def _free(self, first: int) -> None:
        """Put the slots from `first` on into the list of free ones, the lowest to be used first."""
        slots = len(self.sequences)
        if first == slots:
            return
        following = np.arange(first + 1, slots + 1)
        following[-1:] = self.cluster["free_slot"][0]
        self.sequences["next"][first:] = following
        self.cluster["free_slot"] = first
        self.cluster["free_slots"] += slots - first

    def _describe(self, row: int, spec: ReplicaSpec, entry_tokens: int) -> None:
        """Write a replica's profile."""
        profile = spec.profile
        kv_blocks = profile.kv_capacity_tokens // profile.block_tokens
        replica = self.replicas[row]
        for field in _TIMES:
            replica[field] = getattr(profile, field) * spec.slowdown
        replica["max_num_seqs"] = profile.max_num_seqs
        replica["max_batched_tokens"] = profile.max_batched_tokens
        replica["batching"] = tuple(Batching).index(Batching(profile.batching))
        replica["block_tokens"] = profile.block_tokens
        replica["kv_blocks"] = kv_blocks
        limit = min(kv_blocks * profile.block_tokens, profile.model.context_window_tokens)
        replica["token_limit"] = limit
        replica["iteration_end_s"] = np.inf
        replica["healthy"] = 1
        replica["try_admission"] = 1
        replica["ready_s"] = np.inf
        replica["cold_start_s"] = spec.cold_start_s
        replica["factor"] = 1.0
        replica["stages"] = profile.pipeline_parallel
        replica["pipeline_hop_s"] = profile.pipeline_hop_s * spec.slowdown
        replica["patience_end_s"] = np.inf
        for field in ("lru_head", "lru_tail", "span_head", "span_tail", "free_entry"):
            replica[field] = at.NONE
        if entry_tokens:
            count = _entries(spec, entry_tokens)
            replica["entry_tokens"] = entry_tokens
            replica["entry_blocks"] = entry_tokens // profile.block_tokens
            following = np.arange(1, count + 1)
            following[-1:] = at.NONE
            self.entries["next"][row, :count] = following
            replica["free_entry"] = 0 if count else at.NONE


_SIZES = (*range(at.H_EVENTS + 1), at.H_BINS, at.H_LEAVES)
_KEPT = (
    "cluster",
    "replicas",
    "ledger",
    "run",
    "queue",
    "entries",
    "table",
    "births",
    "ends",
    "phases",
    "due",
    "changes",
    "shares",
    "adapters",
    "pipes",
    "flight",
)
"""Tables whose size does not depend on the requests in flight."""
_TIMES = (
    "decode_base_s",
    "decode_seq_s",
    "decode_context_s",
    "prefill_base_s",
    "prefill_token_s",
    "prefill_token2_s",
    "host_overhead_s",
)
_RARE = {
    "sequences": at.H_SEQUENCE,
    "facts": at.H_FACTS,
    "run": at.H_RUN,
    "queue": at.H_QUEUE,
    "entries": at.H_ENTRY,
    "table": at.H_HASH,
    "births": at.H_BIRTH,
    "events": at.H_EVENT,
    "changes": at.H_CHANGE,
    "shares": at.H_SHARE,
    "adapters": at.H_ADAPTER,
    "pipes": at.H_PIPE,
    "flight": at.H_FLIGHT,
    "outcomes": at.H_OUTCOME,
    "ends": at.H_END,
    "phases": at.H_PHASE,
    "due": at.H_DUE,
}
_MORE_SIZES = (at.H_CHANGES, at.H_ADAPTERS, at.H_FLIGHTS)
_FREE_SLOTS = list(at.CLUSTER.names or ()).index("free_slots")
_PENDING = list(at.CLUSTER.names or ()).index("pending")


def _tables(header: NDArray[np.int64]) -> dict[int, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shape and type of each table, in the order in which they lie in the buffer."""
    n, slots, rows, running, entries, table, children, events, bins, leaves = (
        int(header[key]) for key in _SIZES
    )
    return {
        at.H_CLUSTER: ((1,), at.CLUSTER),
        at.H_REPLICA: ((n,), at.REPLICA),
        at.H_LEDGER: ((n, L.STATE_WIDTH), np.dtype(np.float64)),
        at.H_SEQUENCE: ((slots,), at.SEQUENCE),
        at.H_FACTS: ((slots,), at.FACTS),
        at.H_RUN: ((n, running), np.dtype(np.int32)),
        at.H_QUEUE: ((n, at.PRIORITIES, 2), np.dtype(np.int32)),
        at.H_ENTRY: ((n, entries), at.ENTRY),
        at.H_HASH: ((n, table), np.dtype(np.int32)),
        at.H_BIRTH: ((children,), at.BIRTH),
        at.H_EVENT: ((events,), at.EVENT),
        at.H_CHANGE: ((int(header[at.H_CHANGES]),), at.CHANGE),
        at.H_SHARE: ((n,), at.SHARE),
        at.H_ADAPTER: ((n, int(header[at.H_ADAPTERS])), at.ADAPTER),
        at.H_PIPE: ((n,), at.PIPE),
        at.H_FLIGHT: ((n, int(header[at.H_FLIGHTS])), np.dtype(np.int32)),
        at.H_OUTCOME: ((rows,), at.OUTCOME),
        at.H_END: ((n, running), at.END),
        at.H_PHASE: ((n, bins), np.dtype(np.int32)),
        at.H_DUE: ((2, 2 * leaves), np.dtype(np.float64)),
    }


def _reads(replicas: Sequence[ReplicaSpec]) -> NDArray[np.float64]:
    """Factors on `decode_base_s` by decoding sequences: 1 where a profile does not tell them apart.

    The first of a row is of an iteration that only prefills.
    """
    most = max(spec.profile.max_num_seqs for spec in replicas)
    factors = np.ones((len(replicas), most + 1))
    for row, spec in enumerate(replicas):
        curve = spec.profile.decode_base_by_batch_s
        if curve:
            batches, times_s = zip(*curve, strict=True)
            read_s = np.interp(np.arange(most + 1), batches, times_s)
            factors[row] = read_s / spec.profile.decode_base_s
    return factors


def _flights(replicas: Sequence[ReplicaSpec]) -> int:
    """Most sequences in the stages of a replica; 0 where no replica has more than one."""
    if all(spec.profile.pipeline_parallel == 1 for spec in replicas):
        return 0
    return max(spec.profile.max_num_seqs for spec in replicas)


def leaps(spec: ReplicaSpec) -> bool:
    """Whether `leap.py` covers what a replica does: every running sequence gets a token each time."""
    profile = spec.profile
    return profile.max_batched_tokens >= profile.max_num_seqs and plain(spec)


def plain(spec: ReplicaSpec) -> bool:
    """Whether a replica serves from the start, in one stage, and mixes prompts and decodes."""
    profile = spec.profile
    chunked = Batching(profile.batching) is Batching.CHUNKED
    one_stage = profile.pipeline_parallel == 1 and not profile.decode_base_by_batch_s
    return chunked and one_stage and not spec.standby


def _entries(spec: ReplicaSpec, block_tokens: int) -> int:
    """Prefix blocks that fit a replica's KV cache."""
    profile = spec.profile
    if block_tokens % profile.block_tokens:
        raise ConfigError(
            f"replica '{spec.replica_id}': block_tokens = {profile.block_tokens} does not divide the "
            f"trace's prefix blocks of {block_tokens} tokens; change it or set prefix_cache to false"
        )
    return profile.kv_capacity_tokens // profile.block_tokens // (block_tokens // profile.block_tokens)


def _aligned(size: int) -> NDArray[np.uint8]:
    raw = np.empty(size + _ALIGN, dtype=np.uint8)
    start = -int(raw.__array_interface__["data"][0]) % _ALIGN
    return raw[start : start + size]


def _aligned_copy(buffer: NDArray[np.uint8]) -> NDArray[np.uint8]:
    if len(buffer) >= _LARGE and hasattr(mmap, "MAP_POPULATE"):
        # All of it is written at once: to fault its pages in one by one takes longer than to copy them.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE
        twin: NDArray[np.uint8] = np.frombuffer(mmap.mmap(-1, len(buffer), flags=flags), np.uint8)
    else:
        twin = _aligned(len(buffer))
    np.copyto(twin, buffer)
    return twin
