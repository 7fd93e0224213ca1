"""A KV cache arrives where its request will decode."""

from __future__ import annotations

from steersman.env.account import aborted, moved
from steersman.env.disaggregation import destination, leave
from steersman.env.layout import DRAINING, FAILED, NONE
from steersman.env.lifecycle import at_work, retire
from steersman.env.links import DELIVER, linked
from steersman.env.playing import advance, wake
from steersman.env.queues import push_back
from steersman.env.tables import common_in, facts_in, replicas_in, sequences_in


@linked(DELIVER)
def deliver(memory: int, _: int, at_s: float) -> None:
    """A KV cache arrives: its request queues at a decode replica, or fails if there is none."""
    slot = common_in(memory).transfers
    old = facts_in(memory)[slot].replica
    replica = destination(memory, slot)
    advance(memory, old, at_s)
    leave(memory, slot)
    if replica == NONE:
        aborted(memory, slot, at_s, FAILED)
    else:
        advance(memory, replica, at_s)
        moved(memory, slot, replica, at_s)
        sequence = sequences_in(memory)[slot]
        facts_in(memory)[slot].received = sequence.computed
        sequence.computed = 0
        sequence.scheduled = 0
        sequence.hashes = 0
        push_back(memory, replica, slot)
        replicas_in(memory)[replica].try_admission = 1
        wake(memory, replica, at_s)
    if replicas_in(memory)[old].phase == DRAINING and not at_work(memory, old):
        retire(memory, old, at_s)
    elif replicas_in(memory)[old].waiting > 0:
        wake(memory, old, at_s)
