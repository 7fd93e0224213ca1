"""KV memory of a replica: blocks in use, blocks free but remembered, and who gives way.

Of `kv_blocks`, `held_blocks` are in use and `cached_blocks` hold what ended or preempted sequences
computed; cached blocks count as free, as in vLLM, and are evicted when nothing else is left. A
sequence uses `shared` prefix entries and, for the rest of its tokens, `private_blocks` of its own.
"""

from __future__ import annotations

from steersman.env.jit import inner
from steersman.env.layout import NONE
from steersman.env.prefix_cache import find, insert, lru_push, lru_unlink, remove
from steersman.env.segments import drop, extend, match, trim, use
from steersman.env.tables import common_in, entries_in, facts_in, hashes_in, replicas_in, sequences_in


@inner
def blocks_for(tokens: int, block_tokens: int) -> int:
    """Blocks that hold so many tokens."""
    return (max(tokens, 0) + block_tokens - 1) // block_tokens


@inner
def take(memory: int, replica: int, blocks: int) -> bool:
    """Put blocks in use, evicting cached ones if need be; False, and no change, if there are too few."""
    owner = replicas_in(memory)[replica]
    if owner.kv_blocks - owner.held_blocks < blocks:
        return False
    short = blocks - (owner.kv_blocks - owner.held_blocks - owner.cached_blocks)
    if short > 0:
        evict(memory, replica, short)
    owner.held_blocks += blocks
    return True


@inner
def evict(memory: int, replica: int, blocks: int) -> None:
    """Forget cached blocks: prefixes least recently used first, then what preempted sequences left."""
    owner = replicas_in(memory)[replica]
    while blocks > 0 and owner.lru_head != NONE:
        if common_in(memory).segments == 1:
            blocks -= trim(memory, replica, blocks)
            continue
        entry = owner.lru_head
        lru_unlink(memory, replica, entry)
        remove(memory, replica, entry)
        owner.cached_blocks -= owner.entry_blocks
        blocks -= owner.entry_blocks
    while blocks > 0 and owner.span_head != NONE:
        slot = owner.span_head
        facts = facts_in(memory)[slot]
        gone = min(facts.span_blocks, blocks)
        facts.span_blocks -= gone
        owner.cached_blocks -= gone
        blocks -= gone
        if facts.span_blocks == 0:
            span_unlink(memory, replica, slot)


@inner
def grow(memory: int, replica: int, slot: int, tokens: int) -> bool:
    """Make room for a sequence of `tokens` tokens; False, and no change, if there is none."""
    owner = replicas_in(memory)[replica]
    sequence = sequences_in(memory)[slot]
    alone = tokens - sequence.shared * owner.entry_tokens
    missing = blocks_for(alone, owner.block_tokens) - sequence.private_blocks
    if missing <= 0:
        return True
    if not take(memory, replica, missing):
        return False
    sequence.private_blocks += missing
    return True


@inner
def cached(memory: int, replica: int, slot: int) -> tuple[int, int, int, int]:
    """What is cached of a sequence's prompt.

    Returns:
        Blocks that match, those of them without a user and, where runs of blocks are kept, the last
        node and how many of its blocks match; NONE and 0 otherwise.
    """
    if common_in(memory).segments == 1:
        return match(memory, replica, slot)
    sequence = sequences_in(memory)[slot]
    hits = 0
    idle = 0
    while hits < sequence.hashes:
        entry = find(memory, replica, hashes_in(memory)[sequence.hash_start + hits])
        if entry == NONE:
            break
        idle += entries_in(memory)[replica, entry].users == 0
        hits += 1
    return hits, idle, NONE, 0


@inner
def attach(memory: int, replica: int, slot: int, budget: int) -> int:
    """Give a waiting sequence what is cached of it, and room for its first chunk.

    Returns:
        Tokens of the chunk, at most `budget`; 0, and no change, if memory is short.
    """
    owner = replicas_in(memory)[replica]
    sequence = sequences_in(memory)[slot]
    facts = facts_in(memory)[slot]
    hits, idle, last, common = cached(memory, replica, slot)
    span = facts.span_blocks if facts.span_shared == hits else 0
    total = sequence.prompt + sequence.produced
    shared_tokens = hits * owner.entry_tokens
    # At least one token is computed, to have something to sample from.
    known = min(max(shared_tokens + span * owner.block_tokens, facts.received), total - 1)
    chunk = min(total - known, budget)
    private = blocks_for(known + chunk - shared_tokens, owner.block_tokens)
    if private + idle * owner.entry_blocks > owner.kv_blocks - owner.held_blocks:
        return 0
    forget_span(memory, replica, slot)
    if common > 0:
        use(memory, replica, slot, last, common)
    for k in range(0 if common > 0 else hits):
        _use(memory, replica, find(memory, replica, hashes_in(memory)[sequence.hash_start + k]))
    take(memory, replica, private)
    facts.received = 0
    sequence.shared = hits
    sequence.private_blocks = private
    sequence.computed = known
    return int(chunk)


@inner
def share(memory: int, replica: int, slot: int) -> None:
    """Turn the prefix blocks that are computed by now into entries that others can use."""
    owner = replicas_in(memory)[replica]
    sequence = sequences_in(memory)[slot]
    if common_in(memory).segments == 1:
        extend(memory, replica, slot, min(sequence.hashes, sequence.computed // owner.entry_tokens))
        return
    while sequence.shared < sequence.hashes:
        if (sequence.shared + 1) * owner.entry_tokens > sequence.computed:
            break
        key = hashes_in(memory)[sequence.hash_start + sequence.shared]
        entry = find(memory, replica, key)
        if entry == NONE:
            insert(memory, replica, key)
        else:  # Somebody computed the same block at the same time: one copy is enough.
            _use(memory, replica, entry)
            owner.held_blocks -= owner.entry_blocks
            owner.try_admission = 1
        sequence.private_blocks -= owner.entry_blocks
        sequence.shared += 1


@inner
def release(memory: int, replica: int, slot: int) -> None:
    """Free all of a sequence's blocks; its prefix stays cached, the tail first to be evicted."""
    owner = replicas_in(memory)[replica]
    sequence = sequences_in(memory)[slot]
    segments = common_in(memory).segments == 1
    if segments:
        drop(memory, replica, slot)
    for k in range(-1 if segments else sequence.shared - 1, -1, -1):
        entry = find(memory, replica, hashes_in(memory)[sequence.hash_start + k])
        record = entries_in(memory)[replica, entry]
        record.users -= 1
        if record.users == 0:
            lru_push(memory, replica, entry)
            owner.held_blocks -= owner.entry_blocks
            owner.cached_blocks += owner.entry_blocks
    owner.held_blocks -= sequence.private_blocks
    sequence.private_blocks = 0
    sequence.shared = 0
    owner.try_admission = 1


@inner
def release_remembered(memory: int, replica: int, slot: int) -> None:
    """As `release`, for a preempted sequence: its own full blocks stay cached too, until evicted."""
    owner = replicas_in(memory)[replica]
    sequence = sequences_in(memory)[slot]
    facts = facts_in(memory)[slot]
    shared = sequence.shared
    alone = sequence.computed - shared * owner.entry_tokens
    release(memory, replica, slot)
    if common_in(memory).prefix_cache == 0 or alone < owner.block_tokens:
        return
    facts.span_blocks = alone // owner.block_tokens
    facts.span_shared = shared
    owner.cached_blocks += facts.span_blocks
    facts.span_next = NONE
    facts.span_previous = owner.span_tail
    if owner.span_tail == NONE:
        owner.span_head = slot
    else:
        facts_in(memory)[owner.span_tail].span_next = slot
    owner.span_tail = slot


@inner
def forget_span(memory: int, replica: int, slot: int) -> None:
    """What a preempted sequence left is no longer cached: evicted, or in use again."""
    facts = facts_in(memory)[slot]
    if facts.span_blocks > 0:
        replicas_in(memory)[replica].cached_blocks -= facts.span_blocks
        facts.span_blocks = 0
        span_unlink(memory, replica, slot)


@inner
def span_unlink(memory: int, replica: int, slot: int) -> None:
    """Leave the list of remembered sequences."""
    owner = replicas_in(memory)[replica]
    facts = facts_in(memory)[slot]
    if facts.span_previous == NONE:
        owner.span_head = facts.span_next
    else:
        facts_in(memory)[facts.span_previous].span_next = facts.span_next
    if facts.span_next == NONE:
        owner.span_tail = facts.span_previous
    else:
        facts_in(memory)[facts.span_next].span_previous = facts.span_previous


@inner
def _use(memory: int, replica: int, entry: int) -> None:
    owner = replicas_in(memory)[replica]
    record = entries_in(memory)[replica, entry]
    if record.users == 0:
        lru_unlink(memory, replica, entry)
        owner.cached_blocks -= owner.entry_blocks
        owner.held_blocks += owner.entry_blocks
    record.users += 1
