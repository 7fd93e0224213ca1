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
from steersman.env.layout import NONE, RUNNING, State
from steersman.env.queues import first_waiting, push_front, remove_waiting


@njit
def begin_iteration(state: State, replica: int, at_s: float) -> None:
    """Schedule, and set the time at which the iteration will end; idle if there is nothing to do."""
    owner = state.replicas[replica]
    budget, preempted = _continue_running(state, replica)
    if not preempted and owner.waiting > 0:
        _admit(state, replica, budget)
    if owner.running == 0:
        owner.iteration_end_s = np.inf
        return
    duration_s = _duration_s(state, replica)
    owner.iteration_end_s = at_s + duration_s
    owner.iterations += 1
    owner.busy_s += duration_s


@njit
def end_iteration(state: State, replica: int) -> None:
    """The scheduled tokens are computed: produce tokens, share prefixes, let the finished go."""
    owner = state.replicas[replica]
    at_s = owner.iteration_end_s
    run = state.run[replica]
    sequences = state.sequences
    recorded = state.events.shape[0] > 0
    kept = 0
    for i in range(owner.running):
        slot = run[i]
        sequence = sequences[slot]
        sequence.computed += sequence.scheduled
        if sequence.shared < sequence.hashes:
            share(state, replica, slot)
        done = False
        if sequence.scheduled > 0 and sequence.computed == sequence.prompt + sequence.produced:
            sequence.produced += 1
            done = sequence.produced == sequence.output
            if recorded:
                _record(state, slot, at_s, done)
            if sequence.produced == 1:
                first_token(state, slot, at_s)
        if done:
            release(state, replica, slot)
            finished(state, slot, at_s)
        else:
            run[kept] = slot
            kept += 1
    owner.running = kept


@njit
def remove_running(state: State, replica: int, index: int) -> None:
    """Take a sequence out of the batch; the order of the others stays."""
    run = state.run[replica]
    owner = state.replicas[replica]
    owner.running -= 1
    for i in range(index, owner.running):
        run[i] = run[i + 1]


@njit
def _continue_running(state: State, replica: int) -> tuple[int, bool]:
    """Schedule what runs; returns the tokens left of the budget, and whether any was preempted."""
    owner = state.replicas[replica]
    run = state.run[replica]
    budget = owner.max_batched_tokens
    preempted = False
    i = 0
    while i < owner.running:
        slot = run[i]
        sequence = state.sequences[slot]
        tokens = min(sequence.prompt + sequence.produced - sequence.computed, budget)
        while not grow(state, replica, slot, sequence.computed + tokens):
            index = _victim(state, replica)
            victim = run[index]
            if index < i:  # it was scheduled already
                budget += state.sequences[victim].scheduled
                i -= 1
            _preempt(state, replica, index)
            preempted = True
            if victim == slot:
                break
        if sequence.state == RUNNING:
            sequence.scheduled = tokens
            budget -= tokens
            i += 1
    return budget, preempted


@njit
def _victim(state: State, replica: int) -> int:
    """Position in the batch of the newest sequence of the lowest class."""
    run = state.run[replica]
    last = state.replicas[replica].running - 1
    best = last
    for i in range(last - 1, -1, -1):
        if state.sequences[run[i]].priority > state.sequences[run[best]].priority:
            best = i
    return int(best)


@njit
def _preempt(state: State, replica: int, index: int) -> None:
    slot = state.run[replica, index]
    sequence = state.sequences[slot]
    release_remembered(state, replica, slot)
    remove_running(state, replica, index)
    sequence.computed = 0
    sequence.scheduled = 0
    push_front(state, replica, slot)
    state.facts[slot].preemptions += 1
    state.replicas[replica].preemptions += 1


@njit
def _admit(state: State, replica: int, budget: int) -> None:
    """Admit from the queue until a slot, the budget or memory runs out; nobody overtakes."""
    owner = state.replicas[replica]
    while owner.try_admission == 1 and budget > 0 and owner.running < owner.max_num_seqs:
        slot = first_waiting(state, replica)
        if slot == NONE:
            break
        chunk = attach(state, replica, slot, budget)
        if chunk == 0:
            owner.try_admission = 0
            break
        remove_waiting(state, replica, slot)
        sequence = state.sequences[slot]
        sequence.state = RUNNING
        sequence.scheduled = chunk
        state.run[replica, owner.running] = slot
        owner.running += 1
        budget -= chunk
        _count_lookup(state, replica, slot)


@njit
def _count_lookup(state: State, replica: int, slot: int) -> None:
    """Prefix-cache statistics, once per request, as vLLM counts them."""
    facts = state.facts[slot]
    if facts.looked_up == 0:
        sequence = state.sequences[slot]
        facts.looked_up = 1
        facts.cached_tokens = sequence.computed
        state.replicas[replica].prefix_queries += sequence.prompt
        state.replicas[replica].prefix_hits += sequence.computed


@njit
def _duration_s(state: State, replica: int) -> float:
    """The formula of `HardwareProfile`; the times of a replica include its slowdown."""
    owner = state.replicas[replica]
    run = state.run[replica]
    sequences = state.sequences
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
def _record(state: State, slot: int, at_s: float, done: bool) -> None:
    """Write a token to the event log; the caller of the engine reads it before it is full."""
    cluster = state.cluster[0]
    event = state.events[cluster.events]
    event.at_s = at_s
    event.slot = slot
    event.finished = done
    cluster.events += 1
