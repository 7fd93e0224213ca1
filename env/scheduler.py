"""One iteration of one engine, as vLLM's v1 scheduler runs it.

An iteration first continues what runs, in the order of admission: one token for each decoding
sequence, then chunks of unfinished prefills, within `max_batched_tokens`. If a sequence finds no KV
block, the newest of the lowest class that runs is preempted: its blocks are freed, it returns to the
front of the queue and will be recomputed, but for what is still cached then. If nothing was preempted,
waiting requests are admitted in order, while a slot, the token budget and KV blocks last. Tokens appear
at the end of the iteration.
"""

from __future__ import annotations

import numpy as np

from steersman.env.account import finished, first_token
from steersman.env.jit import njit
from steersman.env.kv import attach, grow, release, release_remembered, share
from steersman.env.layout import (
    NONE,
    RUNNING,
    common_in,
    events_in,
    facts_in,
    replicas_in,
    run_in,
    sequences_in,
)
from steersman.env.queues import first_waiting, push_front, remove_waiting


@njit
def begin_iteration(memory: int, replica: int, at_s: float) -> None:
    """Schedule, and set the time at which the iteration will end; idle if there is nothing to do."""
    owner = replicas_in(memory)[replica]
    budget, preempted = _continue_running(memory, replica)
    if not preempted and owner.waiting > 0:
        admit(memory, replica, budget)
    if owner.running == 0:
        owner.iteration_end_s = np.inf
        return
    duration_s = _duration_s(memory, replica)
    owner.iteration_end_s = at_s + duration_s
    owner.iterations += 1
    owner.busy_s += duration_s


@njit
def end_iteration(memory: int, replica: int) -> None:
    """The scheduled tokens are computed: produce tokens, share prefixes, let the finished go."""
    owner = replicas_in(memory)[replica]
    at_s = owner.iteration_end_s
    run = run_in(memory)[replica]
    sequences = sequences_in(memory)
    recorded = events_in(memory).shape[0] > 0
    kept = 0
    for i in range(owner.running):
        slot = run[i]
        sequence = sequences[slot]
        sequence.computed += sequence.scheduled
        if sequence.shared < sequence.hashes:
            share(memory, replica, slot)
        done = False
        if sequence.scheduled > 0 and sequence.computed == sequence.prompt + sequence.produced:
            sequence.produced += 1
            done = sequence.produced == sequence.output
            if recorded:
                _record(memory, slot, at_s, done)
            if sequence.produced == 1:
                first_token(memory, slot, at_s)
        if done:
            release(memory, replica, slot)
            finished(memory, slot, at_s)
        else:
            run[kept] = slot
            kept += 1
    owner.running = kept


@njit
def remove_running(memory: int, replica: int, index: int) -> None:
    """Take a sequence out of the batch; the order of the others stays."""
    run = run_in(memory)[replica]
    owner = replicas_in(memory)[replica]
    owner.running -= 1
    for i in range(index, owner.running):
        run[i] = run[i + 1]


@njit
def _continue_running(memory: int, replica: int) -> tuple[int, bool]:
    """Schedule what runs; returns the tokens left of the budget, and whether any was preempted."""
    owner = replicas_in(memory)[replica]
    run = run_in(memory)[replica]
    sequences = sequences_in(memory)
    entry_tokens = owner.entry_tokens
    block_tokens = owner.block_tokens
    budget = owner.max_batched_tokens
    before = owner.preemptions
    i = 0
    while i < owner.running:
        slot = run[i]
        sequence = sequences[slot]
        tokens = min(sequence.prompt + sequence.produced - sequence.computed, budget)
        after = sequence.computed + tokens
        # Most decode steps stay within their last block, and this loop is where the time goes.
        if after > sequence.shared * entry_tokens + sequence.private_blocks * block_tokens:
            moved, refund = _make_room(memory, replica, i, after)
            i -= moved
            budget += refund
        if sequence.state == RUNNING:
            sequence.scheduled = tokens
            budget -= tokens
            i += 1
    return int(budget), owner.preemptions > before


@njit
def _make_room(memory: int, replica: int, index: int, tokens: int) -> tuple[int, int]:
    """Grow the sequence at `index` of the batch, preempting others, and in the end itself.

    Returns:
        How far its position moved to the front, and the tokens that preempted sequences had scheduled.
    """
    run = run_in(memory)[replica]
    slot = run[index]
    moved = 0
    refund = 0
    while not grow(memory, replica, slot, tokens):
        place = _victim(memory, replica)
        victim = run[place]
        if place < index - moved:
            refund += sequences_in(memory)[victim].scheduled
            moved += 1
        _preempt(memory, replica, place)
        if victim == slot:
            break
    return moved, refund


@njit
def _victim(memory: int, replica: int) -> int:
    """Position in the batch of the newest sequence of the lowest class."""
    run = run_in(memory)[replica]
    last = replicas_in(memory)[replica].running - 1
    best = last
    for i in range(last - 1, -1, -1):
        if sequences_in(memory)[run[i]].priority > sequences_in(memory)[run[best]].priority:
            best = i
    return int(best)


@njit
def _preempt(memory: int, replica: int, index: int) -> None:
    slot = run_in(memory)[replica, index]
    sequence = sequences_in(memory)[slot]
    release_remembered(memory, replica, slot)
    remove_running(memory, replica, index)
    sequence.computed = 0
    sequence.scheduled = 0
    push_front(memory, replica, slot)
    facts_in(memory)[slot].preemptions += 1
    replicas_in(memory)[replica].preemptions += 1


@njit
def admit(memory: int, replica: int, budget: int) -> None:
    """Admit from the queue until a slot, the budget or memory runs out; nobody overtakes."""
    owner = replicas_in(memory)[replica]
    while owner.try_admission == 1 and budget > 0 and owner.running < owner.max_num_seqs:
        slot = first_waiting(memory, replica)
        if slot == NONE:
            break
        chunk = attach(memory, replica, slot, budget)
        if chunk == 0:
            owner.try_admission = 0
            break
        remove_waiting(memory, replica, slot)
        sequence = sequences_in(memory)[slot]
        sequence.state = RUNNING
        sequence.scheduled = chunk
        run_in(memory)[replica, owner.running - owner.decoding] = slot
        owner.running += 1
        budget -= chunk
        _count_lookup(memory, replica, slot)


@njit
def _count_lookup(memory: int, replica: int, slot: int) -> None:
    """Prefix-cache statistics, once per request, as vLLM counts them."""
    facts = facts_in(memory)[slot]
    if facts.looked_up == 0:
        sequence = sequences_in(memory)[slot]
        facts.looked_up = 1
        facts.cached_tokens = sequence.computed
        replicas_in(memory)[replica].prefix_queries += sequence.prompt
        replicas_in(memory)[replica].prefix_hits += sequence.computed


@njit
def _duration_s(memory: int, replica: int) -> float:
    """The formula of `HardwareProfile`; the times of a replica include its slowdown."""
    owner = replicas_in(memory)[replica]
    run = run_in(memory)[replica]
    sequences = sequences_in(memory)
    decoding = 0
    context = 0
    prefill = 0
    prefill2 = 0.0
    for i in range(owner.running):
        sequence = sequences[run[i]]
        tokens = sequence.scheduled
        if sequence.produced > 0 and tokens == 1:
            decoding += 1
            context += sequence.computed + 1
        elif tokens > 0:
            prefill += tokens
            prefill2 += tokens * (tokens + 2.0 * sequence.computed)
    return batch_duration_s(memory, replica, decoding, context, prefill, prefill2)


@njit
def batch_duration_s(
    memory: int, replica: int, decoding: int, context: int, prefill: int, prefill2: float
) -> float:
    """Of sequences that decode, with their context, and tokens of prefill with their squares."""
    owner = replicas_in(memory)[replica]
    base_s = owner.decode_base_s
    if prefill > 0:
        prefill_s = (
            owner.prefill_base_s + owner.prefill_token_s * prefill + owner.prefill_token2_s * prefill2
        )
        base_s = max(base_s, prefill_s)
    duration_s: float = (
        owner.host_overhead_s + owner.decode_seq_s * decoding + owner.decode_context_s * context + base_s
    )
    return duration_s


@njit
def _record(memory: int, slot: int, at_s: float, done: bool) -> None:
    """Write a token to the event log; the caller of the engine reads it before it is full."""
    cluster = common_in(memory)
    event = events_in(memory)[cluster.events]
    event.at_s = at_s
    event.slot = slot
    event.finished = done
    cluster.events += 1
