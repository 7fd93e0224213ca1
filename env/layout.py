"""The memory of a simulated cluster: one block of bytes, read as tables.

Everything that changes while a cluster runs lives in one contiguous buffer, so that a copy of the
buffer is a copy of the cluster. The buffer starts with an int64 header (`H_*`: sizes, and the offset of
each table). What a trace says never changes; it is kept apart, shared by all copies, and the header
holds its address. Compiled functions read the tables through `tables.py`.
"""

from __future__ import annotations

import numpy as np

PRIORITIES = 4
NONE = -1
"""No slot, no entry, no row."""

# Outcome codes, in the order of `Status`; a row starts as PENDING.
PENDING = 0
OK = 1
FAILED = 2
REJECTED = 3
CANCELLED = 4
UNFINISHED = 5

CLUSTER = np.dtype(
    [
        ("now_s", "f8"),
        ("cost", "f8"),  # of requests that no replica accepted
        ("scrape_interval_s", "f8"),
        ("scrape_jitter", "f8"),
        ("scrape_loss", "f8"),
        ("seed", "i8"),
        ("next_root", "i8"),  # next of `roots` that has not arrived
        ("unborn", "i8"),  # children whose parents have not ended
        ("born", "i8"),  # children in the heap
        ("pending", "i8"),  # row that waits for a decision
        ("held_since_s", "f8"),  # when it arrived, if it was held back; infinite if not (`holding.py`)
        ("free_slot", "i8"),  # head of the list of free slots
        ("free_slots", "i8"),
        ("events", "i8"),  # written since they were last read
        ("prefix_cache", "i8"),
        # Lifecycle (`lifecycle.py`).
        ("next_change", "i8"),  # of the schedule, that has not been applied
        ("next_change_s", "f8"),  # when the next change of any kind is due
        ("coupled", "i8"),  # replicas affect each other: all is played in order of time
        ("priority_preemption", "i8"),
        ("adapter_load_s", "f8"),
        # Transfers of KV caches (`disaggregation.py`).
        ("transfers", "i8"),  # the slot that arrives first
        ("transfer_latency_s", "f8"),
        ("transfer_token_s", "f8"),
        ("agenda", "i8"),  # not 0: replicas are looked at when something is due (`agenda.py`)
        ("segments", "i8"),  # 1: runs of prefix blocks are kept (`segments.py`), not single ones
    ],
    align=True,
)

REPLICA = np.dtype(
    [
        # Profile; times include the replica's slowdown.
        ("decode_base_s", "f8"),
        ("decode_seq_s", "f8"),
        ("decode_context_s", "f8"),
        ("prefill_base_s", "f8"),
        ("prefill_token_s", "f8"),
        ("prefill_token2_s", "f8"),
        ("host_overhead_s", "f8"),
        ("max_num_seqs", "i8"),
        ("max_batched_tokens", "i8"),
        ("batching", "i8"),  # position in `Batching`
        ("block_tokens", "i8"),
        ("entry_tokens", "i8"),  # tokens of a prefix block; 0: nothing is shared
        ("entry_blocks", "i8"),  # KV blocks of a prefix block
        ("kv_blocks", "i8"),
        ("token_limit", "i8"),  # longest prompt + output
        # Engine.
        ("iteration_end_s", "f8"),  # infinite when idle
        ("healthy", "i8"),
        ("running", "i8"),
        ("waiting", "i8"),
        ("try_admission", "i8"),  # 0: the head of the queue was refused and nothing was freed since
        ("held_blocks", "i8"),  # in use by running sequences
        ("cached_blocks", "i8"),  # of ended or preempted sequences; free, but remembered
        ("lru_head", "i8"),  # least recently used prefix block without a user
        ("lru_tail", "i8"),
        ("span_head", "i8"),  # oldest preempted sequence that is remembered
        ("span_tail", "i8"),
        ("free_entry", "i8"),
        ("entries", "i8"),  # ever taken: those from here on are as they were allocated
        # Leaping (`leap.py`).
        ("fast", "i8"),  # 1: it may leap
        ("leaping", "i8"),  # 1: decoding sequences are kept in `ends`, relative to the counter
        ("count", "i8"),  # iterations begun while it leaped
        ("joined", "i8"),  # sequences that started to decode
        ("decoding", "i8"),  # of those running; 0 while it steps
        ("context", "i8"),  # tokens the decoding ones will attend to in the next iteration
        ("ended_s", "f8"),  # end of the last iteration that was stepped
        # Scrapes.
        ("next_scrape_s", "f8"),
        ("scrapes", "i8"),
        # Cost (`account.py`).
        ("cost", "f8"),
        ("cost_at_s", "f8"),
        ("cost_rate", "f8"),
        ("inflight", "i8"),
        # Counters.
        ("iterations", "i8"),
        ("busy_s", "f8"),
        ("preemptions", "i8"),
        ("prefix_queries", "i8"),  # prompt tokens looked up
        ("prefix_hits", "i8"),
        # Lifecycle (`lifecycle.py`).
        ("phase", "i8"),
        ("ready_s", "f8"),  # when a pending replica begins to serve; infinite otherwise
        ("cold_start_s", "f8"),
        ("billed_s", "f8"),  # paid for, up to `billed_from_s`
        ("billed_from_s", "f8"),  # infinite while nobody pays
        ("factor", "f8"),  # on iteration times, beyond the spec's slowdown
        ("patience_end_s", "f8"),  # no waiting client leaves before that
        ("losses", "i8"),  # times its cache was lost
        # Adapters (`adapters.py`).
        ("loading_s", "f8"),  # to be added to the next iteration
        ("adapter_uses", "i8"),
        ("adapter_loads", "i8"),
        # Pipeline parallelism (`pipeline.py`).
        ("stages", "i8"),
        ("pipeline_hop_s", "f8"),
        ("in_flight", "i8"),  # sequences in stages
        # Disaggregation (`disaggregation.py`).
        ("role", "i8"),
        ("moving", "i8"),  # sequences whose KV cache is on its way from here
    ],
    align=True,
)
SERVING, DRAINING, STARTING, GONE = range(4)
"""Phases of a replica; a broken one is SERVING and not healthy."""
BOTH, PREFILL, DECODE = range(3)
"""Roles of a replica."""
FAIL, RECOVER, DRAIN, START, SLOW = range(5)
"""Kinds of scheduled changes."""

CHANGE = np.dtype([("at_s", "f8"), ("replica", "i8"), ("kind", "i8"), ("factor", "f8")], align=True)

MOST_STAGES = 16
PIPE = np.dtype(
    [
        ("launched", "i8"),  # batches so far
        ("landed", "i8"),
        ("free_s", "f8", (MOST_STAGES,)),  # when each stage is through with its last batch
        ("end_s", "f8", (MOST_STAGES,)),  # of batches in flight, by number
    ],
    align=True,
)
SHARE = np.dtype(
    [  # A replica's part of a GPU (`sharing.py`).
        ("gpu", "i8"),  # NONE: it has its own
        ("kind", "i8"),
        ("turn_s", "f8"),
        ("preemptive", "i8"),
        ("overhead", "f8"),
        ("demand", "f8"),
        ("alone_s", "f8"),  # its last iteration without neighbours
    ],
    align=True,
)
TIME_SLICE, MPS = range(2)
ADAPTER = np.dtype([("adapter", "i8"), ("used", "i8")], align=True)

SEQUENCE = np.dtype(
    [  # What an iteration touches: one cache line.
        ("prompt", "i4"),
        ("output", "i4"),  # tokens it will produce
        ("produced", "i4"),
        ("computed", "i4"),  # tokens in the KV cache
        ("scheduled", "i4"),  # tokens computed in the current iteration
        ("private_blocks", "i4"),
        ("shared", "i4"),  # prefix blocks it uses
        ("hashes", "i4"),  # prefix blocks it has
        ("hash_start", "i8"),
        ("row", "i8"),
        ("next", "i4"),  # in the waiting queue, or the free list
        ("previous", "i4"),
        ("priority", "i4"),
        ("state", "i4"),
    ],
    align=True,
)
FREE, WAITING, RUNNING, MOVING = range(4)

FACTS = np.dtype(
    [  # What only events touch, by the same slot.
        ("replica", "i8"),
        ("arrival_s", "f8"),
        ("dispatched_s", "f8"),  # later than its arrival, if it was held back
        ("first_token_s", "f8"),
        ("weight", "f8"),
        ("ttft_slo_s", "f8"),
        ("tpot_slo_s", "f8"),
        ("output_p50", "f8"),
        ("uncached", "f8"),
        ("raw_ttft_s", "f8"),
        ("raw_tpot_s", "f8"),
        ("charged", "f8"),
        ("cached_tokens", "i8"),
        ("looked_up", "i8"),
        ("preemptions", "i8"),
        ("span_blocks", "i8"),  # KV blocks remembered since a preemption
        ("span_shared", "i8"),  # prefix blocks before them
        ("span_next", "i8"),
        ("span_previous", "i8"),
        ("arrives_s", "f8"),  # its KV cache, at a decode replica
        ("received", "i8"),  # tokens of it
        ("target", "i8"),  # decode replica that was named, or NONE
        ("batch", "i8"),  # that it is in flight with, or NONE
        ("deadline_s", "f8"),  # of the first token; infinite: the client waits for ever
        ("leaf", "i8"),  # last run of prefix blocks it uses
    ],
    align=True,
)

ENTRY = np.dtype(
    [  # A prefix block in a replica's KV cache, or a run of them (`segments.py`).
        ("key", "i8"),  # hash of the first block
        ("users", "i4"),
        ("next", "i4"),  # in the LRU list, or the free list
        ("previous", "i4"),
        ("length", "i4"),  # blocks
        ("start", "i8"),  # of a run: where its hashes are
        ("parent", "i4"),  # of a run: the one before it
        ("children", "i4"),  # of a run: those after it
        ("used_s", "f8"),  # when the last user let go
    ],
    align=True,
)

OUTCOME = np.dtype(
    [
        ("arrival_s", "f8"),
        ("first_token_s", "f8"),
        ("end_s", "f8"),
        ("replica", "i4"),
        ("produced", "i4"),
        ("cached_tokens", "i4"),
        ("preemptions", "i4"),
        ("status", "i8"),
    ],
    align=True,
)

END = np.dtype([("key", "i8"), ("slot", "i8")], align=True)
"""key: the iteration at whose end a sequence ends, times 2^32, plus its turn among equals."""
BIRTH = np.dtype([("at_s", "f8"), ("row", "i8")], align=True)
EVENT = np.dtype([("at_s", "f8"), ("slot", "i8"), ("finished", "i8")], align=True)

TRACE = np.dtype(
    [
        ("input_tokens", "i8"),
        ("output_tokens", "i8"),
        ("priority", "i8"),
        ("hash_start", "i8"),
        ("hash_count", "i8"),
        ("first_child", "i8"),
        ("next_sibling", "i8"),
        ("think_time_s", "f8"),
        ("arrival_s", "f8"),
        ("weight", "f8"),
        ("ttft_slo_s", "f8"),
        ("tpot_slo_s", "f8"),
        ("patience_s", "f8"),  # 0: without limit
        ("adapter", "i8"),  # or NONE
    ],
    align=True,
)

# Header: sizes, then the offset in bytes of each table.
H_REPLICAS, H_SLOTS, H_ROWS, H_RUNNING, H_ENTRIES, H_TABLE, H_CHILDREN, H_EVENTS = range(8)
H_CLUSTER, H_REPLICA, H_LEDGER, H_SEQUENCE, H_FACTS, H_RUN, H_QUEUE, H_ENTRY, H_HASH = range(8, 17)
H_BIRTH, H_EVENT, H_OUTCOME = range(17, 20)
H_TRACE, H_ROOTS, H_ROOT_COUNT, H_HASHES, H_HASH_COUNT = range(20, 25)  # addresses, and sizes
H_READS = 47  # address
H_CHANGE, H_CHANGES = 25, 26  # the schedule and its length
H_SHARE, H_ADAPTER, H_ADAPTERS, H_PIPE, H_FLIGHT, H_FLIGHTS = range(27, 33)
H_BINS, H_LEAVES = range(33, 35)  # two more sizes
H_END, H_PHASE, H_DUE = range(35, 38)
H_LINKS, H_LINK_COUNT = 38, 39  # address and size
HEADER = 48
