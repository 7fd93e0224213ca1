"""The router's belief of which replica holds which prefix, compiled: `predictors/prefix_index.py` again.

The index tells block by block what a replica must still hold after all that was sent to it. Here the
replicas' caches themselves (`segments.py`) stand for it: a memory without requests, in which every
dispatched prompt is computed at once and let go. The order of eviction is the index's, block for block.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steersman.env import layout as at
from steersman.env.jit import njit
from steersman.env.kv import attach, cached, evict, release, share
from steersman.env.memory import Memory
from steersman.env.static_trace import StaticTrace
from steersman.env.tables import (
    common_in,
    entries_in,
    facts_in,
    ledger_in,
    replicas_in,
    sequences_in,
)
from steersman.predictors.ledger import CACHE_OLDEST_S
from steersman.traces.scenario import ReplicaSpec, Staleness


class Belief:
    """What each replica is believed to hold; rows of a trace stand for their prompts.

    Args:
        replicas: of one pool.
        trace: with block hashes. Where they are not chained, the index may keep blocks behind a gap
            that this forgets.
    """

    def __init__(self, replicas: Sequence[ReplicaSpec], trace: StaticTrace) -> None:
        self._records = trace.records
        nothing = np.zeros(0, dtype=np.int64)
        self.memory = Memory(
            replicas,
            StaticTrace(
                np.zeros(0, dtype=at.TRACE), nothing, trace.hashes, trace.block_tokens, 0, trace.chained
            ),
            staleness=Staleness(),
            prefix_cache=True,
            seed=0,
            slots=1,
        )
        self.memory.facts["leaf"] = at.NONE

    def match(self, row: int) -> NDArray[np.int64]:
        """Number of leading blocks of a row's prompt that each replica holds, (replicas,)."""
        matched = np.empty(len(self.memory.replicas), dtype=np.int64)
        record = self._records[row]
        match_believed(self.memory.address, record["hash_start"], record["hash_count"], matched)
        return matched

    def insert(self, cluster: Memory, replica: int, row: int) -> None:
        """A row's prompt was sent to `replica` of a cluster: it holds it, most recently used."""
        record = self._records[row]
        start, count = record["hash_start"], record["hash_count"]
        believe(self.memory.address, cluster.address, replica, start, count)

    def forget(self, replica: int) -> None:
        """The replica's cache is empty."""
        forget(self.memory.address, replica)

    def forget_lost(self, cluster: Memory) -> None:
        """Forget the replicas of a cluster that lost their cache since they were last looked at."""
        forget_lost(self.memory.address, cluster.address)

    def copy(self) -> Belief:
        """An independent belief with the same contents: one copy of a buffer."""
        twin = Belief.__new__(Belief)
        twin._records = self._records
        twin.memory = self.memory.copy()
        return twin


@njit
def match_believed(memory: int, start: int, count: int, matched: NDArray[np.int64]) -> None:
    """Leading blocks of the prompt whose hashes are given that each replica holds."""
    sequence = sequences_in(memory)[0]
    sequence.hash_start = start
    sequence.hashes = count
    for replica in range(replicas_in(memory).shape[0]):
        hits, _, _, _ = cached(memory, replica, 0)
        matched[replica] = hits


@njit
def believe(memory: int, cluster: int, replica: int, start: int, count: int) -> None:
    """A prompt with these hashes was sent to a cluster's replica. One longer than the cache leaves its
    head. The cluster's ledger is told."""
    owner = replicas_in(memory)[replica]
    capacity = owner.kv_blocks // owner.entry_blocks
    blocks = min(count, capacity)
    if blocks == 0:
        return
    common_in(memory).now_s = common_in(cluster).now_s
    sequence = sequences_in(memory)[0]
    sequence.hash_start = start
    sequence.hashes = blocks
    sequence.prompt = blocks * owner.entry_tokens
    sequence.produced = 0
    sequence.shared = 0
    facts_in(memory)[0].span_blocks = 0
    attach(memory, replica, 0, sequence.prompt)
    sequence.computed = sequence.prompt
    share(memory, replica, 0)
    release(memory, replica, 0)
    oldest_s = -np.inf
    if owner.cached_blocks >= capacity * owner.entry_blocks:
        oldest_s = entries_in(memory)[replica, owner.lru_head].used_s
    ledger_in(cluster)[replica, CACHE_OLDEST_S] = oldest_s


@njit
def forget(memory: int, replica: int) -> None:
    """Nothing is believed to be there any more."""
    evict(memory, replica, replicas_in(memory)[replica].cached_blocks)


@njit
def forget_lost(memory: int, cluster: int) -> None:
    """Believe nothing of the cluster's replicas that lost their cache since they were last looked at."""
    believed = replicas_in(memory)
    owners = replicas_in(cluster)
    for replica in range(owners.shape[0]):
        if believed[replica].losses != owners[replica].losses:
            forget(memory, replica)
            ledger_in(cluster)[replica, CACHE_OLDEST_S] = -np.inf
            believed[replica].losses = owners[replica].losses
