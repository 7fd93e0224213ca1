"""What is scheduled to happen to replicas happens."""

from __future__ import annotations

from steersman.env.failures import fail, recover
from steersman.env.layout import DRAIN, FAIL, RECOVER, SLOW, START
from steersman.env.lifecycle import drain_replica, next_change, start
from steersman.env.links import CHANGE, linked
from steersman.env.playing import advance_all
from steersman.env.tables import common_in, replicas_in


@linked(CHANGE)
def change(memory: int, _: int, due_s: float) -> None:
    """Apply the next change that is due, after all that ends by then."""
    cluster = common_in(memory)
    at_s = max(due_s, cluster.now_s)
    advance_all(memory, at_s)
    kind, replica, factor = next_change(memory)
    if kind == FAIL:
        fail(memory, replica)
    elif kind == RECOVER:
        recover(memory, replica)
    elif kind == DRAIN:
        drain_replica(memory, replica)
    elif kind == START:
        start(memory, replica, replicas_in(memory)[replica].cold_start_s)
    elif kind == SLOW:
        replicas_in(memory)[replica].factor = factor
