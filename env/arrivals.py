"""Which request arrives next, and all that must happen before it does."""

from __future__ import annotations

import numpy as np

from steersman.env.agenda import EVENTS, enter_agenda, first_due, next_due_s
from steersman.env.changes import change
from steersman.env.in_order import first_to_end, play
from steersman.env.jit import inner
from steersman.env.layout import NONE
from steersman.env.playing import advance
from steersman.env.tables import births_in, common_in, roots_in, trace_in


@inner
def arrive(memory: int, until_s: float) -> int:
    """As `next_request_by`, but replicas are left where they are: nobody will look at them."""
    cluster = common_in(memory)
    at_s, from_heap = play_to_arrival(memory, until_s)
    if at_s > until_s:
        cluster.now_s = until_s
        return NONE
    if at_s == np.inf:
        return NONE
    row = _pop_birth(memory) if from_heap else roots_in(memory)[cluster.next_root]
    if not from_heap:
        cluster.next_root += 1
    cluster.pending = row
    cluster.now_s = at_s
    return row


@inner
def play_to_arrival(memory: int, until_s: float) -> tuple[float, bool]:
    """Play all that may bring an arrival forward, or changes a replica, before the next arrival.

    Returns:
        When the next arrival is, by then or later, and whether it is a session's next turn.
    """
    cluster = common_in(memory)
    while cluster.agenda == 1:
        at_s, from_heap = next_arrival(memory)
        due = next_due_s(memory, EVENTS)
        if cluster.unborn == 0 or due > min(at_s, until_s) or due == np.inf:
            return at_s, from_heap
        replica = first_due(memory, EVENTS)
        advance(memory, replica, due)
        enter_agenda(memory, replica, due)
    while True:
        at_s, from_heap = next_arrival(memory)
        replica, end_s = NONE, np.inf
        if cluster.unborn > 0 or cluster.coupled == 1:
            replica, end_s = first_to_end(memory)
        next_s = min(at_s, end_s, until_s)
        if cluster.next_change_s <= next_s < np.inf:
            change(memory, NONE, cluster.next_change_s)
        elif end_s <= next_s and end_s < np.inf:
            play(memory, replica, end_s)
        else:
            return at_s, from_heap


@inner
def next_arrival(memory: int) -> tuple[float, bool]:
    """When the next known arrival is, and whether it is a session's next turn."""
    cluster = common_in(memory)
    root_s = np.inf
    if cluster.next_root < roots_in(memory).shape[0]:
        root_s = trace_in(memory)[roots_in(memory)[cluster.next_root]].arrival_s
    if cluster.born > 0 and births_in(memory)[0].at_s < root_s:
        return births_in(memory)[0].at_s, True
    return root_s, False


@inner
def _pop_birth(memory: int) -> int:
    """Take the earliest child from the heap."""
    cluster = common_in(memory)
    births = births_in(memory)
    row: int = births[0].row
    cluster.born -= 1
    size = cluster.born
    last_s = births[size].at_s
    last_row = births[size].row
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            births[right].at_s < births[child].at_s
            or (births[right].at_s == births[child].at_s and births[right].row < births[child].row)
        ):
            child = right
        if last_s < births[child].at_s or (
            last_s == births[child].at_s and last_row < births[child].row
        ):
            break
        births[i].at_s = births[child].at_s
        births[i].row = births[child].row
        i = child
    births[i].at_s = last_s
    births[i].row = last_row
    return row
