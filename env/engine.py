"""The engine of a cluster: what its owner can do to it, between which it plays itself.

All functions take the address of a cluster's buffer (`layout.py`). Replicas do not affect each other
between decisions, so each is advanced on its own (`playing.py`), and only when something is due on it
(`agenda.py`); while a session's next turn depends on an answer that is still being produced, the
cluster's events are played in order of time (`arrivals.py`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.account import accrue
from steersman.env.agenda import EVENTS, KEPT, LEFT, SCRAPES, enter_agenda, first_due, next_due_s
from steersman.env.arrivals import arrive
from steersman.env.dispatching import dispatch
from steersman.env.jit import inner, njit
from steersman.env.layout import NONE
from steersman.env.leaving import cancel_at
from steersman.env.playing import advance, advance_all, settle_one, step
from steersman.env.tables import common_in, events_in, facts_in, replicas_in, trace_in


@njit
def next_request(memory: int) -> int:
    """Advance to the next arrival and return its row; NONE when no more will arrive."""
    return next_request_by(memory, np.inf)


@njit
def next_request_by(memory: int, until_s: float) -> int:
    """As `next_request`, but stop at `until_s` if nothing arrives by then, and return NONE."""
    row = arrive(memory, until_s)
    if row != NONE or until_s < np.inf:
        catch_up(memory)
    return row


@inner
def next_unseen(memory: int) -> int:
    """As `next_request`, for callers that do not look at replicas: each is where it was left."""
    common = common_in(memory)
    if common.agenda == KEPT and common.unborn == 0:
        common.agenda = LEFT
    row = arrive(memory, np.inf)
    if row != NONE and common.agenda == 0:
        catch_up(memory)
    return row


@inner
def catch_up(memory: int) -> None:
    """Bring every replica on which something is due to the present."""
    at_s = common_in(memory).now_s
    if common_in(memory).agenda == 0:
        advance_all(memory, at_s)
        return
    after_s = np.nextafter(at_s, np.inf)
    if common_in(memory).agenda == LEFT:
        advance_all(memory, at_s)
        common_in(memory).agenda = KEPT
        for replica in range(replicas_in(memory).shape[0]):
            enter_agenda(memory, replica, after_s)
        return
    for tree in (EVENTS, SCRAPES):
        while next_due_s(memory, tree) <= at_s:
            replica = first_due(memory, tree)
            advance(memory, replica, at_s)
            enter_agenda(memory, replica, after_s)


@njit
def advance_to(memory: int, at_s: float) -> bool:
    """Play all iterations that end by `at_s`; False if the event log was full before that.

    For engines that are driven in real time; a cluster is advanced by `next_request` and `drain`.
    """
    cluster = common_in(memory)
    for replica in range(replicas_in(memory).shape[0]):
        owner = replicas_in(memory)[replica]
        while owner.iteration_end_s <= at_s and owner.iteration_end_s < np.inf:
            if events_in(memory).shape[0] - cluster.events < owner.running:
                return False
            cluster.now_s = max(cluster.now_s, owner.iteration_end_s)
            step(memory, replica, owner.iteration_end_s)
    if at_s < np.inf:
        cluster.now_s = max(cluster.now_s, at_s)
    return True


@njit
def cancel(memory: int, slot: int) -> None:
    """The client went away: free what the request holds now. A running iteration takes its time."""
    replica = facts_in(memory)[slot].replica
    now_s = common_in(memory).now_s
    settle_one(memory, replica)
    cancel_at(memory, slot, now_s)
    enter_agenda(memory, replica, now_s)


@njit
def settle(memory: int) -> None:
    """Bring every replica to the present, and write down its batch sequence by sequence."""
    for replica in range(replicas_in(memory).shape[0]):
        settle_one(memory, replica)
        enter_agenda(memory, replica, common_in(memory).now_s)


@njit
def step_only(memory: int) -> None:
    """Play every iteration by itself from now on, since something happens that leaps do not cover."""
    settle(memory)
    for replica in range(replicas_in(memory).shape[0]):
        replicas_in(memory)[replica].fast = 0
    common_in(memory).agenda = 0


@njit
def cost(memory: int) -> float:
    """Accrued by all requests up to now; see `account.py`."""
    cluster = common_in(memory)
    total = cluster.cost
    for replica in range(replicas_in(memory).shape[0]):
        owner = replicas_in(memory)[replica]
        accrue(memory, replica, max(cluster.now_s, owner.cost_at_s))
        total += owner.cost
    return float(total)


@njit
def replay(memory: int, choices: NDArray[np.int64], output_p50: NDArray[np.float64]) -> int:
    """Play a whole trace with a given replica for every row, without observations.

    Stops early, to be called again, when no slot is free; returns the requests dispatched.
    """
    count = 0
    common = common_in(memory)
    while True:
        if common.free_slots == 0:
            catch_up(memory)
            if common.free_slots == 0:
                return count
        row = next_unseen(memory)
        if row == NONE:
            break
        prompt = float(trace_in(memory)[row].input_tokens)
        dispatch(memory, choices[row], output_p50[row], prompt, 0.0, 0.0)
        count += 1
    catch_up(memory)
    return count
