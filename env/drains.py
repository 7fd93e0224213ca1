"""Arrivals stop, and what is in flight is played to its end."""

from __future__ import annotations

import numpy as np

from steersman.env.account import refused
from steersman.env.changes import change
from steersman.env.in_order import first_to_end, next_end_s, play
from steersman.env.jit import inner, njit
from steersman.env.layout import NONE, PENDING, UNFINISHED
from steersman.env.leap import due_s, write_down
from steersman.env.leaving import abort_all
from steersman.env.lifecycle import at_work
from steersman.env.playing import advance
from steersman.env.tables import common_in, outcomes_in, replicas_in, roots_in


@njit
def drain(memory: int, drain_s: float) -> None:
    """Arrivals stop: play what is in flight, for so many seconds; what is left is unfinished."""
    cluster = common_in(memory)
    if cluster.pending != NONE:
        refused(memory, cluster.pending, NONE, UNFINISHED)
        cluster.pending = NONE
    until_s = cluster.now_s + drain_s
    last_s = cluster.now_s
    while cluster.next_change_s <= until_s and cluster.next_change_s < np.inf:
        last_s = _play_out(memory, cluster.next_change_s, last_s)
        if not _at_work(memory):
            break
        change(memory, NONE, cluster.next_change_s)
        last_s = cluster.now_s
    last_s = _play_out(memory, until_s, last_s)
    if _at_work(memory):
        last_s = until_s
    cluster.now_s = last_s
    for replica in range(replicas_in(memory).shape[0]):
        abort_all(memory, replica, last_s, UNFINISHED)
        replicas_in(memory)[replica].iteration_end_s = np.inf
    cluster.next_root = roots_in(memory).shape[0]
    cluster.born = 0
    cluster.unborn = 0
    for row in range(outcomes_in(memory).shape[0]):
        if outcomes_in(memory)[row].status == PENDING:
            outcomes_in(memory)[row].status = UNFINISHED


@inner
def _play_out(memory: int, until_s: float, last_s: float) -> float:
    """Play what is in flight up to `until_s`; returns when it last did anything, or `last_s`."""
    if common_in(memory).coupled == 1:
        replica, end_s = first_to_end(memory)
        while end_s <= until_s and end_s < np.inf:
            last_s = _play_one(memory, replica, end_s, last_s)
            replica, end_s = first_to_end(memory)
        return last_s
    if common_in(memory).agenda > 0:
        return _leap_out(memory, until_s, last_s)
    for replica in range(replicas_in(memory).shape[0]):
        end_s = next_end_s(memory, replica)
        while end_s <= until_s and end_s < np.inf:
            last_s = _play_one(memory, replica, end_s, last_s)
            end_s = next_end_s(memory, replica)
        if at_work(memory, replica) and until_s < np.inf:
            advance(memory, replica, until_s)
    return last_s


@inner
def _leap_out(memory: int, until_s: float, last_s: float) -> float:
    """As `_play_out`, where replicas may leap; then their batches are written down."""
    for replica in range(replicas_in(memory).shape[0]):
        owner = replicas_in(memory)[replica]
        while owner.iteration_end_s <= until_s and owner.iteration_end_s < np.inf:
            advance(memory, replica, min(max(due_s(memory, replica), owner.iteration_end_s), until_s))
            last_s = max(last_s, owner.ended_s)
        if at_work(memory, replica):
            advance(memory, replica, until_s)
        write_down(memory, replica, 1)
    return last_s


@inner
def _play_one(memory: int, replica: int, end_s: float, last_s: float) -> float:
    if replica == NONE or replicas_in(memory)[replica].iteration_end_s < np.inf:
        last_s = max(last_s, end_s)
    play(memory, replica, end_s)
    return last_s


@inner
def _at_work(memory: int) -> bool:
    """Whether anything is in flight."""
    busy = 0
    for replica in range(replicas_in(memory).shape[0]):
        busy += at_work(memory, replica)
    return busy > 0
