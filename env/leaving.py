"""How requests leave before their last token: their clients go, or their replica does."""

from __future__ import annotations

from steersman.env.account import aborted
from steersman.env.disaggregation import leave
from steersman.env.jit import inner
from steersman.env.kv import forget_span, release
from steersman.env.layout import CANCELLED, MOVING, NONE, RUNNING
from steersman.env.pipeline import recall, remove_in_flight
from steersman.env.queues import first_waiting, remove_waiting
from steersman.env.scheduler import remove_running
from steersman.env.tables import common_in, facts_in, replicas_in, run_in, sequences_in


@inner
def cancel_at(memory: int, slot: int, at_s: float) -> None:
    """The client goes: what its request holds is free at once."""
    replica = facts_in(memory)[slot].replica
    remove(memory, replica, slot)
    aborted(memory, slot, at_s, CANCELLED)
    replicas_in(memory)[replica].try_admission = 1


@inner
def abort_all(memory: int, replica: int, at_s: float, status: int) -> None:
    """All that a replica holds ends, in whatever way `status` says."""
    recall(memory, replica)
    owner = replicas_in(memory)[replica]
    while owner.running > 0:
        slot = run_in(memory)[replica, owner.running - 1]
        remove(memory, replica, slot)
        aborted(memory, slot, at_s, status)
    slot = common_in(memory).transfers
    while owner.moving > 0:
        following = sequences_in(memory)[slot].next
        if facts_in(memory)[slot].replica == replica:
            remove(memory, replica, slot)
            aborted(memory, slot, at_s, status)
        slot = following
    while owner.waiting > 0:
        slot = first_waiting(memory, replica)
        remove(memory, replica, slot)
        aborted(memory, slot, at_s, status)


@inner
def remove(memory: int, replica: int, slot: int) -> None:
    """Take a request out of the batch or the queue and free its memory."""
    if sequences_in(memory)[slot].state == MOVING:
        leave(memory, slot)
    elif facts_in(memory)[slot].batch != NONE:
        remove_in_flight(memory, replica, slot)
        release(memory, replica, slot)
    elif sequences_in(memory)[slot].state == RUNNING:
        owner = replicas_in(memory)[replica]
        for i in range(owner.running):
            if run_in(memory)[replica, i] == slot:
                remove_running(memory, replica, i)
                break
        release(memory, replica, slot)
    else:
        forget_span(memory, replica, slot)
        remove_waiting(memory, replica, slot)
