"""Small profiles, traces and clusters for tests, and what must always hold of an engine's memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.env import engine
from steersman.env import layout as at
from steersman.env.cluster import Cluster
from steersman.env.memory import Memory
from steersman.env.profiles import load_profile
from steersman.traces.scenario import ReplicaSpec, Staleness
from steersman.traces.schema import HardwareProfile, Priority, Request
from steersman.traces.trace import Trace


def small_profile(**changes: Any) -> HardwareProfile:
    """An A100 with little of everything, so that every limit is met by small requests."""
    small: dict[str, Any] = {
        "kv_capacity_tokens": 640,
        "max_num_seqs": 4,
        "max_batched_tokens": 128,
    }
    return replace(load_profile("a100-llama-3.1-8b"), **(small | changes))


def request(number: int, arrival_s: float, prompt: int, output: int, **more: Any) -> Request:
    return Request(
        request_id=f"r{number}",
        arrival_s=arrival_s,
        input_tokens=prompt,
        output_tokens=output,
        **more,
    )


def trace_of(*requests: Request) -> Trace:
    return Trace.from_requests("test", requests)


def specs(*profiles: HardwareProfile, slowdown: float = 1.0) -> tuple[ReplicaSpec, ...]:
    return tuple(ReplicaSpec(f"replica-{i}", p, slowdown) for i, p in enumerate(profiles))


def play(cluster: Cluster, choices: NDArray[np.int64] | None = None) -> None:
    """Dispatch everything, by row or round robin, and drain for as long as it takes."""
    while (row := cluster.next_request()) is not None:
        cluster.dispatch(int(choices[row]) if choices is not None else row % len(cluster.replicas))
    cluster.finish(drain_s=1e9)


def check_memory(memory: Memory) -> None:
    """Every account of the engine agrees with every other."""
    engine.settle(memory.address)
    sequences, facts = memory.sequences, memory.facts
    for r, owner in enumerate(memory.replicas):
        batch = [int(slot) for slot in memory.run[r, : owner["running"]]]
        assert len(batch) <= owner["max_num_seqs"]
        batch += [int(slot) for slot in memory.flight[r, : owner["in_flight"]]]
        moving = (sequences["state"] == at.MOVING) & (facts["replica"] == r)
        assert moving.sum() == owner["moving"]
        assert len(set(batch)) == len(batch)
        assert all(sequences["state"][slot] == at.RUNNING for slot in batch)
        batch += np.flatnonzero(moving).tolist()
        queued = [slot for priority in range(at.PRIORITIES) for slot in _queue(memory, r, priority)]
        assert len(queued) == owner["waiting"]
        assert all(sequences["state"][slot] == at.WAITING for slot in queued)
        assert not any(sequences["private_blocks"][slot] for slot in queued)
        entries = _entries(memory, r) if owner["entry_tokens"] else {}
        users = {entry: int(memory.entries["users"][r, entry]) for entry in entries}
        length = {entry: int(memory.entries["length"][r, entry]) for entry in entries}
        assert all(blocks > 0 for blocks in length.values())
        used = sum(users[entry] * length[entry] for entry in entries)
        assert used == sum(int(sequences["shared"][slot]) for slot in batch)
        idle = _lru(memory, r)
        assert sorted(idle) == sorted(entry for entry, count in users.items() if count == 0)
        idle_blocks = sum(length[entry] for entry in idle)
        used_entries = sum(length.values()) - idle_blocks
        private = sum(int(sequences["private_blocks"][slot]) for slot in batch)
        assert owner["held_blocks"] == private + used_entries * owner["entry_blocks"]
        remembered = sum(int(facts["span_blocks"][slot]) for slot in queued)
        assert owner["cached_blocks"] == remembered + idle_blocks * owner["entry_blocks"]
        assert 0 <= owner["held_blocks"] + owner["cached_blocks"] <= owner["kv_blocks"]
        for slot in batch:
            held = sequences["shared"][slot] * owner["entry_tokens"]
            held += sequences["private_blocks"][slot] * owner["block_tokens"]
            assert held >= sequences["computed"][slot] + sequences["scheduled"][slot]
    busy = int((sequences["state"] != at.FREE).sum())
    assert busy == int(sum(memory.replicas[key].sum() for key in _HELD))
    assert busy == len(sequences) - memory.free_slots


_HELD = ("running", "waiting", "in_flight", "moving")


def _queue(memory: Memory, replica: int, priority: int) -> list[int]:
    found = []
    slot = int(memory.queue[replica, priority, 0])
    while slot != at.NONE:
        found.append(slot)
        slot = int(memory.sequences["next"][slot])
    assert (found[-1] if found else at.NONE) == memory.queue[replica, priority, 1]
    return found


def _entries(memory: Memory, replica: int) -> dict[int, int]:
    """Entries in the table, by number; each key once."""
    stored = [int(entry) for entry in memory.table[replica] if entry != at.NONE]
    keys = {entry: int(memory.entries["key"][replica, entry]) for entry in stored}
    assert len(set(keys.values())) == len(stored)
    return keys


def _lru(memory: Memory, replica: int) -> list[int]:
    found = []
    entry = int(memory.replicas["lru_head"][replica])
    while entry != at.NONE:
        found.append(entry)
        entry = int(memory.entries["next"][replica, entry])
    return found


@st.composite
def worlds(draw: st.DrawFn, *, sessions: bool = True, hashes: bool = True) -> Cluster:
    """One to seventeen unlike replicas with a trace that hits every limit, in either engine."""
    replicas = tuple(
        ReplicaSpec(
            f"replica-{i}",
            small_profile(
                kv_capacity_tokens=draw(st.integers(6, 60)) * 16,
                max_num_seqs=draw(st.integers(1, 6)),
                max_batched_tokens=draw(st.integers(1, 200)),
            ),
            draw(st.sampled_from([1.0, 2.0])),
        )
        for i in range(draw(st.sampled_from([1, 2, 3, 5, 17])))
    )
    block_tokens = draw(st.sampled_from([16, 32]))
    chained = draw(st.sampled_from([True, True, False]))
    requests: list[Request] = []
    at_s = 0.0
    for number in range(draw(st.integers(1, 40))):
        at_s += draw(st.sampled_from([0.0, 0.001, 0.02, 0.3]))
        prompt = draw(st.integers(1, 400))
        family = draw(st.integers(0, 2))
        own = draw(st.integers(0, 12))
        blocks = tuple(family * 100 + k if k < own else 1000 * (number + 1) + k for k in range(prompt))
        if not chained:
            blocks = tuple(block % (7 + family) for block in blocks)
        parent = (
            draw(st.integers(0, number - 1)) if sessions and number and draw(st.booleans()) else None
        )
        requests.append(
            request(
                number,
                at_s,
                prompt,
                draw(st.integers(1, 60)),
                priority=Priority(draw(st.integers(0, 3))),
                block_hashes=blocks[: prompt // block_tokens] if hashes else (),
                block_tokens=block_tokens if hashes and prompt >= block_tokens else 0,
                session_id=None if parent is None else f"s{parent}",
                parent_id=None if parent is None else f"r{parent}",
                think_time_s=draw(st.sampled_from([0.0, 0.1])),
            )
        )
    return Cluster(
        replicas,
        trace_of(*requests),
        staleness=Staleness(draw(st.sampled_from([0.01, 1.0])), 0.5, draw(st.sampled_from([0.0, 0.5]))),
        prefix_cache=draw(st.booleans()),
        seed=draw(st.integers(0, 1000)),
        stepped=draw(st.booleans()),
    )
