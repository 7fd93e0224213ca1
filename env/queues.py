"""Lists of slots: the free ones, and each replica's waiting queue per priority.

First come, first served within a priority, lower priorities first; the preempted return to the front.
"""

from __future__ import annotations

from steersman.env.jit import njit
from steersman.env.layout import FREE, NONE, PRIORITIES, WAITING, State


@njit
def take_slot(state: State) -> int:
    """A free slot; the caller has made sure that there is one."""
    cluster = state.cluster[0]
    slot: int = cluster.free_slot
    cluster.free_slot = state.sequences[slot].next
    cluster.free_slots -= 1
    return slot


@njit
def free_slot(state: State, slot: int) -> None:
    """Give a slot back."""
    cluster = state.cluster[0]
    sequence = state.sequences[slot]
    sequence.state = FREE
    sequence.next = cluster.free_slot
    cluster.free_slot = slot
    cluster.free_slots += 1


@njit
def first_waiting(state: State, replica: int) -> int:
    """The slot whose turn it is, or NONE."""
    for priority in range(PRIORITIES):
        head: int = state.queue[replica, priority, 0]
        if head != NONE:
            return head
    return NONE


@njit
def push_back(state: State, replica: int, slot: int) -> None:
    """Join the end of the queue."""
    sequence = state.sequences[slot]
    queue = state.queue[replica, sequence.priority]
    sequence.state = WAITING
    sequence.next = NONE
    sequence.previous = queue[1]
    if queue[1] == NONE:
        queue[0] = slot
    else:
        state.sequences[queue[1]].next = slot
    queue[1] = slot
    state.replicas[replica].waiting += 1


@njit
def push_front(state: State, replica: int, slot: int) -> None:
    """Return to the front of the queue."""
    sequence = state.sequences[slot]
    queue = state.queue[replica, sequence.priority]
    sequence.state = WAITING
    sequence.previous = NONE
    sequence.next = queue[0]
    if queue[0] == NONE:
        queue[1] = slot
    else:
        state.sequences[queue[0]].previous = slot
    queue[0] = slot
    state.replicas[replica].waiting += 1


@njit
def remove_waiting(state: State, replica: int, slot: int) -> None:
    """Leave the queue, from wherever it stands."""
    sequence = state.sequences[slot]
    queue = state.queue[replica, sequence.priority]
    if sequence.previous == NONE:
        queue[0] = sequence.next
    else:
        state.sequences[sequence.previous].next = sequence.next
    if sequence.next == NONE:
        queue[1] = sequence.previous
    else:
        state.sequences[sequence.next].previous = sequence.previous
    state.replicas[replica].waiting -= 1
