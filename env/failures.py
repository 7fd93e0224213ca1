"""A replica breaks, and comes back."""

from __future__ import annotations

from steersman.env.agenda import enter_agenda
from steersman.env.jit import njit
from steersman.env.layout import FAILED, GONE, SERVING
from steersman.env.leaving import abort_all
from steersman.env.lifecycle import lose, retire, tell
from steersman.env.playing import settle_one
from steersman.env.tables import common_in, replicas_in


@njit
def fail(memory: int, replica: int) -> None:
    """A replica breaks: all it holds fails, its caches are lost, it accepts nothing.

    One that drains or starts is gone for good.
    """
    now_s = common_in(memory).now_s
    owner = replicas_in(memory)[replica]
    settle_one(memory, replica)
    abort_all(memory, replica, now_s, FAILED)
    if owner.phase == SERVING:
        owner.healthy = 0
        lose(memory, replica)
    elif owner.phase != GONE:
        retire(memory, replica, now_s)
    enter_agenda(memory, replica, now_s)


@njit
def recover(memory: int, replica: int) -> None:
    """A broken replica is back, empty."""
    owner = replicas_in(memory)[replica]
    if owner.phase == SERVING:
        owner.healthy = 1
        tell(memory, replica)
