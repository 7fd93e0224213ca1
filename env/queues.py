"""Lists of slots: the free ones, and each replica's waiting queue per priority.

First come, first served within a priority, lower priorities first; the preempted return to the front.
"""

from __future__ import annotations

from steersman.env.jit import inner
from steersman.env.layout import FREE, NONE, PRIORITIES, WAITING
from steersman.env.tables import common_in, queue_in, replicas_in, sequences_in


@inner
def take_slot(memory: int) -> int:
    """A free slot; the caller has made sure that there is one."""
    cluster = common_in(memory)
    slot: int = cluster.free_slot
    cluster.free_slot = sequences_in(memory)[slot].next
    cluster.free_slots -= 1
    return slot


@inner
def free_slot(memory: int, slot: int) -> None:
    """Give a slot back."""
    cluster = common_in(memory)
    sequence = sequences_in(memory)[slot]
    sequence.state = FREE
    sequence.next = cluster.free_slot
    cluster.free_slot = slot
    cluster.free_slots += 1


@inner
def first_waiting(memory: int, replica: int) -> int:
    """The slot whose turn it is, or NONE."""
    for priority in range(PRIORITIES):
        head: int = queue_in(memory)[replica, priority, 0]
        if head != NONE:
            return head
    return NONE


@inner
def push_back(memory: int, replica: int, slot: int) -> None:
    """Join the end of the queue."""
    sequence = sequences_in(memory)[slot]
    queue = queue_in(memory)[replica, sequence.priority]
    sequence.state = WAITING
    sequence.next = NONE
    sequence.previous = queue[1]
    if queue[1] == NONE:
        queue[0] = slot
    else:
        sequences_in(memory)[queue[1]].next = slot
    queue[1] = slot
    replicas_in(memory)[replica].waiting += 1


@inner
def push_front(memory: int, replica: int, slot: int) -> None:
    """Return to the front of the queue."""
    sequence = sequences_in(memory)[slot]
    queue = queue_in(memory)[replica, sequence.priority]
    sequence.state = WAITING
    sequence.previous = NONE
    sequence.next = queue[0]
    if queue[0] == NONE:
        queue[1] = slot
    else:
        sequences_in(memory)[queue[0]].previous = slot
    queue[0] = slot
    replicas_in(memory)[replica].waiting += 1


@inner
def remove_waiting(memory: int, replica: int, slot: int) -> None:
    """Leave the queue, from wherever it stands."""
    sequence = sequences_in(memory)[slot]
    queue = queue_in(memory)[replica, sequence.priority]
    if sequence.previous == NONE:
        queue[0] = sequence.next
    else:
        sequences_in(memory)[sequence.previous].next = sequence.next
    if sequence.next == NONE:
        queue[1] = sequence.previous
    else:
        sequences_in(memory)[sequence.next].previous = sequence.previous
    replicas_in(memory)[replica].waiting -= 1
