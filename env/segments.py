"""A replica's cached prefixes as a path-compressed tree: what `prefix_cache.py` keeps block by block.

Hashes are chained (`chains.py`): a block stands for everything before it, and a run of blocks that
nobody has told apart is one node, a slice of the trace's hashes, found in the hash table by its first
block. Where two prompts part inside a node is found by bisection, and the node is split there. A
sequence remembers the deepest node it uses (`leaf`); the nodes above are that node's parents, and it
uses all of them whole.

The LRU list holds nodes without users, children before their parents, and within a node the tail goes
first: the order in which single blocks would go.
"""

from __future__ import annotations

from steersman.env.jit import inner
from steersman.env.layout import NONE
from steersman.env.prefix_cache import (
    find,
    insert,
    lru_push,
    lru_unlink,
    place,
    remove,
    stand_in,
    take_entry,
)
from steersman.env.tables import entries_in, facts_in, hashes_in, replicas_in, sequences_in


@inner
def match(memory: int, replica: int, slot: int) -> tuple[int, int, int, int]:
    """What is cached of a sequence's prompt.

    Returns:
        Blocks that match, those of them without a user, the last node and how many of its blocks match.
    """
    sequence = sequences_in(memory)[slot]
    hits = 0
    idle = 0
    last = NONE
    common = 0
    while hits < sequence.hashes:
        start = sequence.hash_start + hits
        node = find(memory, replica, hashes_in(memory)[start])
        if node == NONE:
            break
        record = entries_in(memory)[replica, node]
        last = node
        common = _common(memory, record.start, start, min(record.length, sequence.hashes - hits))
        hits += common
        if record.users == 0:
            idle += common
        if common < record.length:
            break
    return hits, idle, last, common


@inner
def use(memory: int, replica: int, slot: int, last: int, common: int) -> None:
    """A waiting sequence uses the first `common` blocks of node `last`, and all above it."""
    node = _cut(memory, replica, last, common)
    facts_in(memory)[slot].leaf = node
    while node != NONE:
        _add_user(memory, replica, node)
        node = entries_in(memory)[replica, node].parent


@inner
def extend(memory: int, replica: int, slot: int, blocks: int) -> None:
    """Share a sequence's prefix up to so many blocks, all computed by now; takes them from its own."""
    owner = replicas_in(memory)[replica]
    sequence = sequences_in(memory)[slot]
    facts = facts_in(memory)[slot]
    while sequence.shared < blocks:
        start = sequence.hash_start + sequence.shared
        count = blocks - sequence.shared
        if facts.leaf != NONE and _grow_leaf(memory, replica, facts.leaf, start, count):
            sequence.private_blocks -= count * owner.entry_blocks
            sequence.shared += count
            return
        node = find(memory, replica, hashes_in(memory)[start])
        if node == NONE:
            _append(memory, replica, slot, count)
        else:  # Somebody computed the same blocks at the same time: one copy is enough.
            record = entries_in(memory)[replica, node]
            count = _common(memory, record.start, start, min(record.length, count))
            node = _cut(memory, replica, node, count)
            _add_user(memory, replica, node)
            facts.leaf = node
            owner.held_blocks -= count * owner.entry_blocks
            owner.try_admission = 1
        sequence.private_blocks -= count * owner.entry_blocks
        sequence.shared += count


@inner
def drop(memory: int, replica: int, slot: int) -> None:
    """A sequence lets go of all its prefix; what nobody uses stays cached."""
    owner = replicas_in(memory)[replica]
    facts = facts_in(memory)[slot]
    node = facts.leaf
    while node != NONE:
        record = entries_in(memory)[replica, node]
        record.users -= 1
        if record.users == 0:
            lru_push(memory, replica, node)
            owner.held_blocks -= record.length * owner.entry_blocks
            owner.cached_blocks += record.length * owner.entry_blocks
        node = record.parent
    facts.leaf = NONE


@inner
def trim(memory: int, replica: int, blocks: int) -> int:
    """Forget so many KV blocks of the node least recently used, or all it has; returns how many."""
    owner = replicas_in(memory)[replica]
    node = owner.lru_head
    record = entries_in(memory)[replica, node]
    gone = min(record.length, (blocks + owner.entry_blocks - 1) // owner.entry_blocks)
    record.length -= gone
    owner.cached_blocks -= gone * owner.entry_blocks
    if record.length == 0:
        if record.parent != NONE:
            entries_in(memory)[replica, record.parent].children -= 1
        lru_unlink(memory, replica, node)
        remove(memory, replica, node)
    return int(gone * owner.entry_blocks)


@inner
def _common(memory: int, first: int, second: int, most: int) -> int:
    """Leading blocks that two places in the hashes have in common, up to `most`; the first is."""
    hashes = hashes_in(memory)
    if first == second or hashes[first + most - 1] == hashes[second + most - 1]:
        return most
    same = 1
    differ = most
    while differ - same > 1:
        middle = (same + differ) // 2
        if hashes[first + middle - 1] == hashes[second + middle - 1]:
            same = middle
        else:
            differ = middle
    return same


@inner
def _add_user(memory: int, replica: int, node: int) -> None:
    owner = replicas_in(memory)[replica]
    record = entries_in(memory)[replica, node]
    if record.users == 0:
        lru_unlink(memory, replica, node)
        owner.cached_blocks -= record.length * owner.entry_blocks
        owner.held_blocks += record.length * owner.entry_blocks
    record.users += 1


@inner
def _grow_leaf(memory: int, replica: int, leaf: int, start: int, count: int) -> bool:
    """Lengthen a sequence's leaf by its next blocks; False, and no change, if it is not its alone.

    Nobody has those blocks: they would be in a node after the leaf.
    """
    record = entries_in(memory)[replica, leaf]
    if record.users > 1 or record.children > 0:
        return False
    record.start = start - record.length  # the same blocks, and what follows them here
    record.length += count
    return True


@inner
def _append(memory: int, replica: int, slot: int, count: int) -> None:
    """Blocks that nobody has, as a new node after the sequence's leaf."""
    sequence = sequences_in(memory)[slot]
    facts = facts_in(memory)[slot]
    start = sequence.hash_start + sequence.shared
    leaf = facts.leaf
    if leaf != NONE:
        entries_in(memory)[replica, leaf].children += 1
    node = insert(memory, replica, hashes_in(memory)[start])
    record = entries_in(memory)[replica, node]
    record.start = start
    record.length = count
    record.parent = leaf
    record.children = 0
    facts.leaf = node


@inner
def _cut(memory: int, replica: int, node: int, count: int) -> int:
    """Split a node after `count` blocks, if it is longer; returns the node that ends there."""
    if node == NONE:
        return NONE
    tail = entries_in(memory)[replica, node]
    if count == tail.length:
        return node
    # The tail keeps its number: the sequences and children that end or begin there refer to it.
    added = take_entry(memory, replica)
    head = entries_in(memory)[replica, added]
    stand_in(memory, replica, node, added)
    head.key = tail.key
    head.users = tail.users
    head.start = tail.start
    head.length = count
    head.parent = tail.parent
    head.children = 1
    head.used_s = tail.used_s
    tail.start += count
    tail.length -= count
    tail.parent = added
    tail.key = hashes_in(memory)[tail.start]
    place(memory, replica, node)
    if tail.users == 0:
        _follow(memory, replica, node, added)
    return added


@inner
def _follow(memory: int, replica: int, node: int, added: int) -> None:
    """Put a node into the LRU list right after another."""
    owner = replicas_in(memory)[replica]
    record = entries_in(memory)[replica, node]
    entries_in(memory)[replica, added].previous = node
    entries_in(memory)[replica, added].next = record.next
    if record.next == NONE:
        owner.lru_tail = added
    else:
        entries_in(memory)[replica, record.next].previous = added
    record.next = added
