"""One engine without a trace: requests come when they come, and time is told to it.

The emulated backend plays this against the wall clock. It is the cluster's engine with a single
replica and nothing else: requests, hashes and results share its slots, which are used again.

::

    engine = LiveEngine(load_profile("a100-llama-3.1-8b"))
    handle = engine.submit(0.0, 1000, 100, hashes, priority=0)
    for handle, at_s, finished in engine.advance(engine.next_event_s):
        ...  # each is one token
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.env import engine
from steersman.env import layout as at
from steersman.env.dispatching import dispatch
from steersman.env.memory import Memory
from steersman.env.static_trace import StaticTrace
from steersman.traces.scenario import ReplicaSpec, Staleness
from steersman.traces.schema import HardwareProfile

FIRST_SLOTS = 512
_ARENA = 1 << 14
"""Room for block hashes at first."""


class TokenEvent(NamedTuple):
    """A token was produced."""

    handle: int
    at_s: float
    finished: bool
    """It was the last of its request, whose handle means nothing from now on."""


@dataclass(frozen=True, slots=True)
class LiveMetrics:
    """What an engine would put on its metrics page."""

    running: int
    waiting: int
    kv_usage: float
    """Fraction of blocks in use; cached blocks that nobody uses are free."""
    preemptions: int
    prefix_queries: int
    """Prompt tokens looked up in the prefix cache."""
    prefix_hits: int
    iterations: int
    busy_s: float


class LiveEngine:
    """Continuous batching of one replica, driven from outside.

    Times are seconds on the caller's clock and never run back. Not thread-safe.

    Args:
        profile: of the replica.
        slowdown: factor on all its times.
        prefix_cache: whether prompts share cached prefixes.
        block_tokens: tokens per hashed prefix block; a multiple of the profile's KV block. None: equal.
        seed: of everything random; the engine itself draws nothing.

    Raises:
        ConfigError: `block_tokens` is no multiple of the profile's.
    """

    def __init__(
        self,
        profile: HardwareProfile,
        *,
        slowdown: float = 1.0,
        prefix_cache: bool = True,
        block_tokens: int | None = None,
        seed: int = 0,
    ) -> None:
        self._arena = np.zeros(_ARENA, dtype=np.int64)
        self._arena_end = 0
        self._handles: list[int] = [at.NONE] * FIRST_SLOTS
        self._slots: dict[int, int] = {}
        self._issued = 0
        self._events: list[TokenEvent] = []
        # Cached tokens of requests that ended: in `_events`, and in what `advance` returned last.
        self._ending: dict[int, int] = {}
        self._ended: dict[int, int] = {}
        self._memory = Memory(
            (ReplicaSpec("live", profile, slowdown),),
            self._rows(FIRST_SLOTS, block_tokens or profile.block_tokens),
            staleness=Staleness(scrape_interval_s=math.inf, jitter=0.0),
            prefix_cache=prefix_cache,
            seed=seed,
            slots=FIRST_SLOTS,
            events=4 * max(profile.max_num_seqs, 1024),
        )
        self._look()

    @property
    def token_limit(self) -> int:
        """Longest prompt plus output that this engine can ever hold."""
        return int(self._memory.replicas["token_limit"][0])

    @property
    def next_event_s(self) -> float:
        """When the current iteration ends; infinite while there is nothing to do."""
        return float(self._iteration_end_s[0])

    def submit(
        self,
        now_s: float,
        prompt_tokens: int,
        output_tokens: int,
        block_hashes: Sequence[int] = (),
        priority: int = 0,
    ) -> int:
        """Queue a request; it joins the batch at the end of the current iteration at the earliest.

        Args:
            block_hashes: chained hashes of the prompt's full prefix blocks, first block first.
            priority: 0 to 3, lower first.

        Returns:
            A handle for `cancel`, `cached_tokens` and the events of `advance`.

        Raises:
            ValueError: a length is below one, or together they exceed `token_limit`.
        """
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(f"lengths must be at least 1, got {prompt_tokens} and {output_tokens}")
        if prompt_tokens + output_tokens > self.token_limit:
            raise ValueError(
                f"{prompt_tokens} + {output_tokens} tokens exceed the limit of {self.token_limit}"
            )
        self._play(now_s)
        memory = self._memory
        if memory.free_slots == 0:
            self._grow()
        slot = int(memory.cluster["free_slot"][0])
        record = memory.trace.records[slot]
        record["input_tokens"] = prompt_tokens
        record["output_tokens"] = output_tokens
        record["priority"] = min(max(priority, 0), at.PRIORITIES - 1)
        record["hash_start"] = self._store(block_hashes)
        record["hash_count"] = len(block_hashes)
        memory.cluster["pending"] = slot
        dispatch(memory.address, 0, 0.0, float(prompt_tokens), 0.0, 0.0)
        handle = self._issued
        self._issued += 1
        self._handles[slot] = handle
        self._slots[handle] = slot
        return handle

    def cancel(self, handle: int, now_s: float) -> None:
        """Forget a request at once; the iteration it is in takes its time. No more events come of it.

        One that has ended is left alone.
        """
        self._play(now_s)
        self._events = [event for event in self._events if event.handle != handle]
        slot = self._slots.pop(handle, None)
        if slot is not None:
            engine.cancel(self._memory.address, slot)

    def advance(self, now_s: float) -> list[TokenEvent]:
        """Every token of the iterations that ended by `now_s`, in order of time."""
        self._play(now_s)
        events, self._events = self._events, []
        self._ended, self._ending = self._ending, {}
        return events

    def cached_tokens(self, handle: int) -> int:
        """Prompt tokens a request found in the prefix cache; 0 until it is admitted.

        Known while it is in flight, and after the `advance` that told its end until the next one.
        """
        slot = self._slots.get(handle)
        return self._ended.get(handle, 0) if slot is None else int(self._cached_tokens[slot])

    def is_waiting(self, handle: int) -> bool:
        """Whether a request is in flight and not in the batch: never admitted yet, or preempted."""
        slot = self._slots.get(handle)
        return slot is not None and int(self._sequence_state[slot]) == at.WAITING

    def metrics(self) -> LiveMetrics:
        """As of the last `advance`."""
        replica = self._memory.replicas[0]
        return LiveMetrics(
            running=int(replica["running"]),
            waiting=int(replica["waiting"]),
            kv_usage=float(replica["held_blocks"] / replica["kv_blocks"]),
            preemptions=int(replica["preemptions"]),
            prefix_queries=int(replica["prefix_queries"]),
            prefix_hits=int(replica["prefix_hits"]),
            iterations=int(replica["iterations"]),
            busy_s=float(replica["busy_s"]),
        )

    def _play(self, now_s: float) -> None:
        """Bring the engine to `now_s` and keep what it produced."""
        memory = self._memory
        complete = False
        while not complete:
            complete = engine.advance_to(memory.address, float(now_s))
            count = int(self._recorded[0])
            if count:
                self._collect(self._tokens[:count])
                self._recorded[0] = 0

    def _look(self) -> None:
        """Keep views of what every turn looks at; they cost more to make than to read."""
        memory = self._memory
        self._tokens = memory.events
        self._recorded = memory.cluster["events"]
        self._iteration_end_s = memory.replicas["iteration_end_s"]
        self._sequence_state = memory.sequences["state"]
        self._cached_tokens = memory.facts["cached_tokens"]

    def _collect(self, events: NDArray[Any]) -> None:
        for at_s, slot, finished in events.tolist():
            handle = self._handles[slot]
            self._events.append(TokenEvent(handle, at_s, bool(finished)))
            if finished and self._slots.pop(handle, None) is not None:
                self._ending[handle] = int(self._cached_tokens[slot])

    def _store(self, block_hashes: Sequence[int]) -> int:
        """Keep hashes as long as the request may need them; returns where they start."""
        end = self._arena_end + len(block_hashes)
        if end > len(self._arena):
            self._compact(len(block_hashes))
            end = self._arena_end + len(block_hashes)
        start = self._arena_end
        self._arena[start:end] = block_hashes
        self._arena_end = end
        return start

    def _compact(self, wanted: int) -> None:
        """Drop the hashes of ended requests; enlarge the arena if that is not half of it."""
        sequences = self._memory.sequences
        live = sorted(self._slots.values())
        kept = [
            (slot, int(sequences["hash_start"][slot]), int(sequences["hashes"][slot])) for slot in live
        ]
        used = sum(count for _, _, count in kept) + wanted
        size = len(self._arena)
        while size < 2 * used:
            size *= 2
        arena = np.zeros(size, dtype=np.int64)
        end = 0
        for slot, start, count in kept:
            arena[end : end + count] = self._arena[start : start + count]
            sequences["hash_start"][slot] = end
            end += count
        self._arena, self._arena_end = arena, end
        old = self._memory.trace
        self._memory.use_trace(
            StaticTrace(old.records, old.roots, arena, old.block_tokens, old.children)
        )

    def _grow(self) -> None:
        slots = 2 * len(self._handles)
        self._handles += [at.NONE] * (slots - len(self._handles))
        self._memory.grow(slots, self._rows(slots, self._memory.trace.block_tokens))
        self._look()

    def _rows(self, count: int, block_tokens: int) -> StaticTrace:
        """Rows for requests to come: row and slot are the same number."""
        records: NDArray[Any] = np.zeros(count, dtype=at.TRACE)
        for field in ("weight", "ttft_slo_s", "tpot_slo_s"):
            records[field] = 1.0
        records["first_child"] = at.NONE
        return StaticTrace(records, np.zeros(0, dtype=np.int64), self._arena, block_tokens, 0)
