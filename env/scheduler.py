"""One iteration of one engine, as vLLM's v1 scheduler runs it.

An iteration first continues what runs, in the order of admission: one token for each decoding
sequence, then chunks of unfinished prefills, within `max_batched_tokens`. If a sequence finds no KV
block, the newest of the lowest class that runs is preempted: its blocks are freed, it returns to the
front of the queue and will be recomputed, but for what is still cached then. If nothing was preempted,
waiting requests are admitted in order, while a slot, the token budget and KV blocks last. Tokens appear
at the end of the iteration. Engines that do not mix prompts and decodes: `batching.py`.
"""

from __future__ import annotations

import numpy as np

from steersman.env.account import finished, first_token
from steersman.env.adapters import adapter_fits, use_adapter
from steersman.env.batching import CHUNKED, count_lookup, start_prompts
from steersman.env.disaggregation import depart
from steersman.env.jit import inner
from steersman.env.kv import attach, grow, release, release_remembered, share
from steersman.env.layout import NONE, PREFILL, RUNNING
from steersman.env.links import BEGIN, END, linked
from steersman.env.queues import first_waiting, push_front, remove_waiting
from steersman.env.sharing import shared_s
from steersman.env.tables import (
    adapters_in,
    common_in,
    events_in,
    facts_in,
    reads_in,
    replicas_in,
    run_in,
    sequences_in,
)


@linked(BEGIN)
def begin_iteration(memory: int, replica: int, at_s: float) -> None:
    """Schedule, and set the time at which the iteration will end; idle if there is nothing to do."""
    owner = replicas_in(memory)[replica]
    if owner.batching == CHUNKED:
        budget, preempted = _continue_running(memory, replica)
        if not preempted and owner.waiting > 0:
            admit(memory, replica, budget)
    elif not start_prompts(memory, replica):
        _continue_running(memory, replica)
    if owner.running == 0:
        owner.iteration_end_s = np.inf
        return
    duration_s = scheduled_s(memory, replica, owner.running, 0, 0) * owner.factor + owner.loading_s
    owner.loading_s = 0.0
    if common_in(memory).coupled == 1:
        duration_s = shared_s(memory, replica, duration_s)
    owner.iteration_end_s = at_s + duration_s
    owner.iterations += 1
    owner.busy_s += duration_s


@linked(END)
def end_iteration(memory: int, replica: int, at_s: float) -> None:
    """The scheduled tokens are computed: produce tokens, share prefixes, let the finished go."""
    owner = replicas_in(memory)[replica]
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
        elif sequence.produced == 1 and owner.role == PREFILL:
            depart(memory, replica, slot, at_s)
        else:
            run[kept] = slot
            kept += 1
    owner.running = kept


@inner
def remove_running(memory: int, replica: int, index: int) -> None:
    """Take a sequence out of the batch; the order of the others stays."""
    run = run_in(memory)[replica]
    owner = replicas_in(memory)[replica]
    owner.running -= 1
    for i in range(index, owner.running):
        run[i] = run[i + 1]


@inner
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


@inner
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


@inner
def _victim(memory: int, replica: int) -> int:
    """Position in the batch of the newest sequence of the lowest class."""
    run = run_in(memory)[replica]
    last = replicas_in(memory)[replica].running - 1
    best = last
    for i in range(last - 1, -1, -1):
        if sequences_in(memory)[run[i]].priority > sequences_in(memory)[run[best]].priority:
            best = i
    return int(best)


@inner
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


@inner
def admit(memory: int, replica: int, budget: int) -> None:
    """Admit from the queue until a slot, the budget or memory runs out; nobody overtakes the head.

    With `priority_preemption`, what runs of lower classes makes way for it.
    """
    owner = replicas_in(memory)[replica]
    adapters = adapters_in(memory).shape[1] > 0
    while owner.try_admission == 1 and budget > 0:
        slot = first_waiting(memory, replica)
        if slot == NONE:
            break
        chunk = 0
        if owner.running < owner.max_num_seqs and (not adapters or adapter_fits(memory, replica, slot)):
            chunk = attach(memory, replica, slot, budget)
        if chunk == 0:
            refund = _overtake(memory, replica, slot)
            if refund == NONE:
                owner.try_admission = 1 if owner.running >= owner.max_num_seqs else 0
                break
            budget += refund
            continue
        remove_waiting(memory, replica, slot)
        sequence = sequences_in(memory)[slot]
        sequence.state = RUNNING
        sequence.scheduled = chunk
        run_in(memory)[replica, owner.running - owner.decoding] = slot
        owner.running += 1
        budget -= chunk
        if adapters:
            use_adapter(memory, replica, slot)
        count_lookup(memory, replica, slot)


@inner
def _overtake(memory: int, replica: int, slot: int) -> int:
    """Preempt the newest of the lowest class for the head of the queue, if that is of a higher one.

    Returns:
        The tokens it had scheduled; NONE if nobody makes way.
    """
    if common_in(memory).priority_preemption == 0 or replicas_in(memory)[replica].running == 0:
        return NONE
    place = _victim(memory, replica)
    victim = sequences_in(memory)[run_in(memory)[replica, place]]
    if victim.priority <= sequences_in(memory)[slot].priority:
        return NONE
    refund: int = victim.scheduled
    _preempt(memory, replica, place)
    return refund


@inner
def scheduled_s(memory: int, replica: int, listed: int, decoding: int, context: int) -> float:
    """The formula of `HardwareProfile`; the times of a replica include its slowdown.

    Args:
        listed: sequences of the batch list that are looked at.
        decoding, context: of those that decode and are not among them.
    """
    run = run_in(memory)[replica]
    sequences = sequences_in(memory)
    prefill = 0
    prefill2 = 0.0
    for i in range(listed):
        sequence = sequences[run[i]]
        tokens = sequence.scheduled
        if sequence.produced > 0 and tokens == 1:
            decoding += 1
            context += sequence.computed + 1
        elif tokens > 0:
            prefill += tokens
            prefill2 += tokens * (tokens + 2.0 * sequence.computed)
    return batch_duration_s(memory, replica, decoding, context, prefill, prefill2)


@inner
def batch_duration_s(
    memory: int, replica: int, decoding: int, context: int, prefill: int, prefill2: float
) -> float:
    """Of sequences that decode, with their context, and tokens of prefill with their squares."""
    owner = replicas_in(memory)[replica]
    base_s = owner.decode_base_s * reads_in(memory)[replica, decoding]
    if prefill > 0:
        prefill_s = (
            owner.prefill_base_s + owner.prefill_token_s * prefill + owner.prefill_token2_s * prefill2
        )
        base_s = max(base_s, prefill_s)
    duration_s: float = (
        owner.host_overhead_s + owner.decode_seq_s * decoding + owner.decode_context_s * context + base_s
    )
    return duration_s


@inner
def _record(memory: int, slot: int, at_s: float, done: bool) -> None:
    """Write a token to the event log; the caller of the engine reads it before it is full."""
    cluster = common_in(memory)
    event = events_in(memory)[cluster.events]
    event.at_s = at_s
    event.slot = slot
    event.finished = done
    cluster.events += 1
