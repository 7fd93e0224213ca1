"""A heap of the sequences that decode on a replica: the first to end on top."""

from __future__ import annotations

from steersman.env.jit import inner
from steersman.env.tables import ends_in, replicas_in


@inner
def push_end(memory: int, replica: int, key: int, slot: int) -> None:
    """One more decodes; keys differ."""
    owner = replicas_in(memory)[replica]
    ends = ends_in(memory)[replica]
    i = owner.decoding
    owner.decoding += 1
    while i > 0:
        parent = (i - 1) // 2
        if ends[parent].key < key:
            break
        ends[i].key = ends[parent].key
        ends[i].slot = ends[parent].slot
        i = parent
    ends[i].key = key
    ends[i].slot = slot


@inner
def pop_end(memory: int, replica: int) -> int:
    """Remove the first; returns its slot."""
    owner = replicas_in(memory)[replica]
    ends = ends_in(memory)[replica]
    first: int = ends[0].slot
    owner.decoding -= 1
    size = owner.decoding
    key = ends[size].key
    slot = ends[size].slot
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        if child + 1 < size and ends[child + 1].key < ends[child].key:
            child += 1
        if key < ends[child].key:
            break
        ends[i].key = ends[child].key
        ends[i].slot = ends[child].slot
        i = child
    ends[i].key = key
    ends[i].slot = slot
    return first
