"""Many iterations at once: what `scheduler.py` does, in time that does not depend on the batch.

While nothing arrives, ends or is prefilled, a batch of n decoding sequences stays the same: the times of
its iterations form an arithmetic series (each attends to n tokens more than the last), and a whole
stretch is played in closed form. A replica in this mode keeps a counter of its iterations. A sequence
that starts to decode after iteration c with m tokens to go ends with iteration c + m: a heap of such
ends stands for the loop over the batch. Its `computed` and `produced` are kept less the counter, so
that they need no change, and their sum (`context`) grows by n. KV blocks taken over a stretch follow
from how many sequences stand at which token of their last block (`phases`).

Only unfinished prefills are in the replica's batch list, in the order of admission; all that decode
are older. A shortage of KV blocks, and whatever else needs the batch itself, ends the mode
(`write_down`): then the replica steps, and comes back (`_enter`) when there is memory to spare.

An iteration is on the books from its start: counter, context and blocks include the one that runs.
"""

from __future__ import annotations

import math

import numpy as np

from steersman.env.account import finished, first_token
from steersman.env.ends import pop_end, push_end
from steersman.env.jit import inner
from steersman.env.kv import blocks_for, release, share, take
from steersman.env.links import LEAP, linked
from steersman.env.scheduler import admit, begin_iteration, end_iteration, scheduled_s
from steersman.env.tables import ends_in, phases_in, replicas_in, run_in, sequences_in

_TURNS = 32
_ROOM = 4
"""A replica leaps again once a block is free for every so many running sequences."""


@inner
def step(memory: int, replica: int, until_s: float) -> None:
    """Play the current iteration, which ends by `until_s`, and as many like it as end by then."""
    owner = replicas_in(memory)[replica]
    if owner.leaping == 1:
        if _leap(memory, replica, until_s):
            return
        at_s = owner.iteration_end_s
        _end(memory, replica)
    else:
        at_s = owner.iteration_end_s
        end_iteration(memory, replica, at_s)
    owner.ended_s = at_s
    begin(memory, replica, at_s)


@linked(LEAP)
def begin(memory: int, replica: int, at_s: float) -> None:
    """Begin an iteration, in whichever mode fits; idle if there is nothing to do."""
    owner = replicas_in(memory)[replica]
    if owner.fast == 1:
        if owner.leaping == 0 and _ROOM * (owner.kv_blocks - owner.held_blocks) >= owner.running:
            _enter(memory, replica)
        if owner.leaping == 1:
            if _begin(memory, replica, at_s):
                return
            write_down(memory, replica, 0)
    begin_iteration(memory, replica, at_s)


@inner
def due_s(memory: int, replica: int) -> float:
    """When something may happen next that anyone outside would notice, apart from scrapes."""
    owner = replicas_in(memory)[replica]
    at_s = owner.iteration_end_s
    if owner.leaping == 1 and _steady(memory, replica):
        left = (ends_in(memory)[replica, 0].key >> _TURNS) - owner.count
        if left > 0 and _blocks(memory, replica, left) <= owner.kv_blocks - owner.held_blocks:
            half_s = 0.5 * owner.decode_context_s * owner.decoding
            at_s = _end_after_s(at_s, _decode_s(memory, replica), half_s, left)
    return float(at_s)


@inner
def write_down(memory: int, replica: int, running: int) -> None:
    """Write down the batch as it is, and step from now on. `running`: 1 if an iteration is under way."""
    owner = replicas_in(memory)[replica]
    if owner.leaping == 0:
        return
    owner.leaping = 0
    run = run_in(memory)[replica]
    sequences = sequences_in(memory)
    decoding = owner.decoding
    for i in range(owner.running - decoding - 1, -1, -1):
        run[decoding + i] = run[i]
    ended = owner.count - running
    ends = ends_in(memory)[replica]
    owner.decoding = 0
    for i in range(decoding):  # The same heap, by turn.
        push_end(memory, replica, ends[i].key & 0xFFFFFFFF, ends[i].slot)
    for i in range(decoding):
        slot = pop_end(memory, replica)
        sequence = sequences[slot]
        run[i] = slot
        sequence.computed += ended
        sequence.produced += ended
        sequence.scheduled = running
        alone = sequence.computed + running - sequence.shared * owner.entry_tokens
        sequence.private_blocks = blocks_for(alone, owner.block_tokens)


@inner
def _enter(memory: int, replica: int) -> None:
    """Leap from now on, if all that decode stand before all that do not. Between two iterations."""
    owner = replicas_in(memory)[replica]
    run = run_in(memory)[replica]
    decoding = 0
    for i in range(owner.running):
        if _decodes(memory, replica, run[i]):
            if decoding < i:
                return
            decoding += 1
    owner.leaping = 1
    owner.count = 0
    owner.joined = 0
    owner.context = 0
    phases_in(memory)[replica, :] = 0
    for i in range(decoding):
        _join(memory, replica, run[i])
    for i in range(owner.running - decoding):
        run[i] = run[decoding + i]


@inner
def _decodes(memory: int, replica: int, slot: int) -> bool:  # noqa: ARG001
    """Whether all that is left to do for it is one token after the other."""
    sequence = sequences_in(memory)[slot]
    left = sequence.prompt + sequence.produced - sequence.computed
    return bool(sequence.produced > 0 and left == 1 and sequence.shared == sequence.hashes)


@inner
def _join(memory: int, replica: int, slot: int) -> None:
    """It decodes from the next iteration on."""
    owner = replicas_in(memory)[replica]
    sequence = sequences_in(memory)[slot]
    last = owner.count + sequence.output - sequence.produced
    owner.context += sequence.computed + 1
    sequence.computed -= owner.count
    sequence.produced -= owner.count
    phases_in(memory)[replica, sequence.computed % owner.block_tokens] += 1
    push_end(memory, replica, (last << _TURNS) + owner.joined, slot)
    owner.joined += 1


@inner
def _end(memory: int, replica: int) -> None:
    """The current iteration ends: as `end_iteration`."""
    owner = replicas_in(memory)[replica]
    at_s = owner.iteration_end_s
    sequences = sequences_in(memory)
    ends = ends_in(memory)[replica]
    while owner.decoding > 0 and ends[0].key >> _TURNS == owner.count:
        slot = pop_end(memory, replica)
        sequence = sequences[slot]
        phases_in(memory)[replica, sequence.computed % owner.block_tokens] -= 1
        sequence.computed += owner.count
        sequence.produced = sequence.output
        owner.context -= sequence.computed + 1
        owner.running -= 1
        alone = sequence.computed - sequence.shared * owner.entry_tokens
        sequence.private_blocks = blocks_for(alone, owner.block_tokens)
        release(memory, replica, slot)
        finished(memory, slot, at_s)
    run = run_in(memory)[replica]
    prefilling = owner.running - owner.decoding
    kept = 0
    for i in range(prefilling):
        slot = run[i]
        sequence = sequences[slot]
        sequence.computed += sequence.scheduled
        if sequence.shared < sequence.hashes:
            share(memory, replica, slot)
        if sequence.scheduled == 0 or sequence.computed < sequence.prompt + sequence.produced:
            run[kept] = slot
            kept += 1
            continue
        sequence.produced += 1
        if sequence.produced == 1:
            first_token(memory, slot, at_s)
        if sequence.produced == sequence.output:
            owner.running -= 1
            release(memory, replica, slot)
            finished(memory, slot, at_s)
        else:
            _join(memory, replica, slot)


@inner
def _begin(memory: int, replica: int, at_s: float) -> bool:
    """Begin an iteration: as `begin_iteration`. False, and no change, if KV blocks are short."""
    owner = replicas_in(memory)[replica]
    run = run_in(memory)[replica]
    sequences = sequences_in(memory)
    needed = phases_in(memory)[replica, -owner.count % owner.block_tokens]
    budget = owner.max_batched_tokens - owner.decoding
    prefilling = owner.running - owner.decoding
    for i in range(prefilling):
        sequence = sequences[run[i]]
        tokens = min(sequence.prompt + sequence.produced - sequence.computed, budget)
        alone = sequence.computed + tokens - sequence.shared * owner.entry_tokens
        sequence.scheduled = tokens
        needed += max(blocks_for(alone, owner.block_tokens) - sequence.private_blocks, 0)
        budget -= tokens
    if not take(memory, replica, needed):
        return False
    for i in range(prefilling):
        sequence = sequences[run[i]]
        alone = sequence.computed + sequence.scheduled - sequence.shared * owner.entry_tokens
        blocks = blocks_for(alone, owner.block_tokens)
        sequence.private_blocks = max(sequence.private_blocks, blocks)
    if owner.waiting > 0:
        admit(memory, replica, budget)
    if owner.running == 0:
        owner.iteration_end_s = np.inf
        return True
    duration_s = scheduled_s(
        memory, replica, owner.running - owner.decoding, owner.decoding, owner.context
    )
    owner.iteration_end_s = at_s + duration_s
    owner.iterations += 1
    owner.busy_s += duration_s
    owner.count += 1
    owner.context += owner.decoding
    return True


@inner
def _steady(memory: int, replica: int) -> bool:
    """Whether the next iterations differ from the current one in context only, until one ends."""
    owner = replicas_in(memory)[replica]
    if owner.decoding == 0 or owner.running > owner.decoding:
        return False
    full = owner.running == owner.max_num_seqs
    return bool(owner.waiting == 0 or owner.try_admission == 0 or full)


@inner
def _leap(memory: int, replica: int, until_s: float) -> bool:
    """Play every iteration that ends by `until_s` and ends no sequence; False if there is none.

    The current one ends by then.
    """
    if not _steady(memory, replica):
        return False
    owner = replicas_in(memory)[replica]
    count = (ends_in(memory)[replica, 0].key >> _TURNS) - owner.count
    if count <= 0:
        return False
    start_s = owner.iteration_end_s
    first_s = _decode_s(memory, replica)
    half_s = 0.5 * owner.decode_context_s * owner.decoding
    if _end_after_s(start_s, first_s, half_s, count - 1) > until_s:
        count = 1 + _whole(start_s, first_s, half_s, until_s)
    blocks = _blocks(memory, replica, count)
    if not take(memory, replica, blocks):
        return False
    end_s = _end_after_s(start_s, first_s, half_s, count)
    owner.busy_s += end_s - owner.iteration_end_s
    owner.iteration_end_s = end_s
    owner.iterations += count
    owner.count += count
    owner.context += count * owner.decoding
    return True


@inner
def _decode_s(memory: int, replica: int) -> float:
    """Of the next iteration, if all that it does is to decode; as `batch_duration_s`."""
    owner = replicas_in(memory)[replica]
    duration_s: float = (
        owner.host_overhead_s
        + owner.decode_seq_s * owner.decoding
        + owner.decode_context_s * owner.context
        + owner.decode_base_s
    )
    return duration_s


@inner
def _end_after_s(start_s: float, first_s: float, half_s: float, count: int) -> float:
    """When so many iterations end: the first takes `first_s`, each later one 2 `half_s` more."""
    return start_s + count * (first_s + half_s * (count - 1))


@inner
def _whole(start_s: float, first_s: float, half_s: float, until_s: float) -> int:
    """Iterations that end by `until_s`: the root of a quadratic, rounded down."""
    left_s = until_s - start_s
    less_s = first_s - half_s
    count = int(2.0 * left_s / (less_s + math.sqrt(less_s * less_s + 4.0 * half_s * left_s)))
    # The root is exact but for rounding.
    while count > 0 and _end_after_s(start_s, first_s, half_s, count) > until_s:
        count -= 1
    while _end_after_s(start_s, first_s, half_s, count + 1) <= until_s:
        count += 1
    return count


@inner
def _blocks(memory: int, replica: int, count: int) -> int:
    """KV blocks that the next `count` iterations take after the current one."""
    owner = replicas_in(memory)[replica]
    phases = phases_in(memory)[replica]
    size = owner.block_tokens
    blocks = count // size * owner.decoding
    phase = -owner.count % size
    for _ in range(count % size):
        blocks += phases[phase]
        phase = size - 1 if phase == 0 else phase - 1
    return int(blocks)
