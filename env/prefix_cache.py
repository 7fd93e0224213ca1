"""A replica's cached prefix blocks: a hash table, and an LRU list of those nobody uses.

An entry is one block of the trace's hashes (`entry_tokens`, a multiple of the engine's KV block). It is
in use while a running sequence holds it and evictable afterwards. Open addressing with linear probing
and backward-shift deletion; the table is at most half full.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from steersman.env.jit import inner
from steersman.env.layout import NONE
from steersman.env.tables import common_in, entries_in, replicas_in, table_in

_SPREAD = np.uint64(0x9E3779B97F4A7C15)
_SHIFT = np.uint64(29)


@inner
def home_of(key: int, size: int) -> int:
    """Where a key belongs: Fibonacci hashing, since hashes of other engines may be small integers."""
    mixed = np.uint64(key) * _SPREAD
    home: Any = np.int64((mixed ^ (mixed >> _SHIFT)) & np.uint64(size - 1))
    return home  # type: ignore[no-any-return]


@inner
def find(memory: int, replica: int, key: int) -> int:
    """The entry of a block hash, or NONE."""
    table = table_in(memory)[replica]
    size = table.shape[0]
    i = home_of(key, size)
    while True:
        entry: int = table[i]
        if entry == NONE or entries_in(memory)[replica, entry].key == key:
            return entry
        i = (i + 1) & (size - 1)


@inner
def insert(memory: int, replica: int, key: int) -> int:
    """A new entry with one user. The key is not in the table, and an entry is free."""
    entry = take_entry(memory, replica)
    record = entries_in(memory)[replica, entry]
    record.key = key
    record.users = 1
    record.length = 1
    place(memory, replica, entry)
    return entry


@inner
def take_entry(memory: int, replica: int) -> int:
    """A free entry."""
    owner = replicas_in(memory)[replica]
    entry: int = owner.free_entry
    owner.free_entry = entries_in(memory)[replica, entry].next
    # The list begins in order, and what is given back comes first.
    owner.entries = max(owner.entries, entry + 1)
    return entry


@inner
def place(memory: int, replica: int, entry: int) -> None:
    """Put an entry into the table by its key."""
    table = table_in(memory)[replica]
    size = table.shape[0]
    i = home_of(entries_in(memory)[replica, entry].key, size)
    while table[i] != NONE:
        i = (i + 1) & (size - 1)
    table[i] = entry


@inner
def stand_in(memory: int, replica: int, entry: int, other: int) -> None:
    """Find another entry by this one's key from now on; this one is in the table no more."""
    table = table_in(memory)[replica]
    size = table.shape[0]
    i = home_of(entries_in(memory)[replica, entry].key, size)
    while table[i] != entry:
        i = (i + 1) & (size - 1)
    table[i] = other


@inner
def remove(memory: int, replica: int, entry: int) -> None:
    """Forget an entry that is in no list."""
    table = table_in(memory)[replica]
    size = table.shape[0]
    hole = home_of(entries_in(memory)[replica, entry].key, size)
    while table[hole] != entry:
        hole = (hole + 1) & (size - 1)
    i = hole
    while True:
        i = (i + 1) & (size - 1)
        if table[i] == NONE:
            break
        home = home_of(entries_in(memory)[replica, table[i]].key, size)
        # Move back what could not stand nearer its home because of the hole.
        if ((i - home) & (size - 1)) >= ((i - hole) & (size - 1)):
            table[hole] = table[i]
            hole = i
    table[hole] = NONE
    owner = replicas_in(memory)[replica]
    entries_in(memory)[replica, entry].next = owner.free_entry
    owner.free_entry = entry


@inner
def lru_push(memory: int, replica: int, entry: int) -> None:
    """Most recently used, and now evictable."""
    owner = replicas_in(memory)[replica]
    record = entries_in(memory)[replica, entry]
    record.used_s = common_in(memory).now_s
    record.next = NONE
    record.previous = owner.lru_tail
    if owner.lru_tail == NONE:
        owner.lru_head = entry
    else:
        entries_in(memory)[replica, owner.lru_tail].next = entry
    owner.lru_tail = entry


@inner
def lru_unlink(memory: int, replica: int, entry: int) -> None:
    """In use again, or evicted."""
    owner = replicas_in(memory)[replica]
    record = entries_in(memory)[replica, entry]
    if record.previous == NONE:
        owner.lru_head = record.next
    else:
        entries_in(memory)[replica, record.previous].next = record.next
    if record.next == NONE:
        owner.lru_tail = record.previous
    else:
        entries_in(memory)[replica, record.next].previous = record.previous
