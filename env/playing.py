"""One replica's time: its iterations, its scrapes and its clients' patience, in order.

Iterations are stepped through (`scheduler.py`, `pipeline.py`) or, where that changes nothing, played
many at a time (`leap.py`). Nothing outside relies on which.
"""

from __future__ import annotations

import numpy as np

from steersman.env.jit import inner
from steersman.env.layout import DRAINING, NONE, PRIORITIES
from steersman.env.leap import begin as begin_leaping
from steersman.env.leap import step as step_leaping
from steersman.env.leap import write_down
from steersman.env.leaving import cancel_at
from steersman.env.lifecycle import at_work, retire
from steersman.env.links import ADVANCE, PATIENCE, STEP, linked
from steersman.env.pipeline import begin as begin_batch
from steersman.env.pipeline import step as step_batch
from steersman.env.scrapes import scrape, skip_scrapes
from steersman.env.tables import (
    common_in,
    facts_in,
    flight_in,
    queue_in,
    replicas_in,
    run_in,
    sequences_in,
)


@linked(ADVANCE)
def advance(memory: int, replica: int, until_s: float) -> None:
    """Play one replica's iterations and scrapes up to and including `until_s`."""
    owner = replicas_in(memory)[replica]
    if owner.fast == 1 and owner.next_scrape_s <= until_s:
        skip_scrapes(memory, replica, until_s)
    while True:
        if owner.patience_end_s < min(owner.iteration_end_s, owner.next_scrape_s):
            if owner.patience_end_s > until_s:
                return
            lose_patience(memory, replica, owner.patience_end_s)
        elif owner.iteration_end_s <= owner.next_scrape_s:
            if owner.iteration_end_s > until_s:
                return
            if owner.fast == 1:
                step_leaping(memory, replica, min(until_s, owner.next_scrape_s))
            else:
                step(memory, replica, owner.iteration_end_s)
        else:
            if owner.next_scrape_s > until_s:
                return
            scrape(memory, replica)


@linked(STEP)
def step(memory: int, replica: int, at_s: float) -> None:
    """Play the current iteration, which ends then, and begin the next."""
    owner = replicas_in(memory)[replica]
    step_batch(memory, replica)
    owner.ended_s = at_s
    if owner.phase == DRAINING and not at_work(memory, replica):
        retire(memory, replica, at_s)


@inner
def wake(memory: int, replica: int, at_s: float) -> None:
    """There is something new to do."""
    owner = replicas_in(memory)[replica]
    if owner.fast == 1:
        if owner.iteration_end_s == np.inf:
            begin_leaping(memory, replica, at_s)
    elif owner.iteration_end_s == np.inf or owner.stages > 1:
        begin_batch(memory, replica, at_s)


@inner
def advance_all(memory: int, at_s: float) -> None:
    """Bring every replica to `at_s`, whether anything is due on it or not."""
    common_in(memory).now_s = at_s
    for replica in range(replicas_in(memory).shape[0]):
        advance(memory, replica, at_s)


@inner
def settle_one(memory: int, replica: int) -> None:
    """Bring a replica to the present, and write down its batch sequence by sequence."""
    if replicas_in(memory)[replica].fast == 1:
        advance(memory, replica, common_in(memory).now_s)
        write_down(memory, replica, 1)


@linked(PATIENCE)
def lose_patience(memory: int, replica: int, at_s: float) -> None:
    """Clients whose first token is overdue leave; find out who will be the next."""
    owner = replicas_in(memory)[replica]
    next_s = np.inf
    for i in range(owner.running - 1, -1, -1):
        next_s = min(next_s, _wait_on(memory, run_in(memory)[replica, i], at_s))
    for i in range(owner.in_flight - 1, -1, -1):
        next_s = min(next_s, _wait_on(memory, flight_in(memory)[replica, i], at_s))
    for priority in range(PRIORITIES):
        slot = queue_in(memory)[replica, priority, 0]
        while slot != NONE:
            following = sequences_in(memory)[slot].next
            next_s = min(next_s, _wait_on(memory, slot, at_s))
            slot = following
    owner.patience_end_s = next_s
    if owner.phase == DRAINING and not at_work(memory, replica):
        retire(memory, replica, at_s)


@inner
def _wait_on(memory: int, slot: int, at_s: float) -> float:
    """Until when its client still waits for a first token; infinite if it has one, or has left now."""
    if sequences_in(memory)[slot].produced > 0:
        return np.inf
    deadline_s: float = facts_in(memory)[slot].deadline_s
    if deadline_s > at_s:
        return deadline_s
    cancel_at(memory, slot, at_s)
    return np.inf
