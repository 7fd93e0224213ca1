"""Pipeline parallelism: the layers of a model on several stages, several batches in flight.

With `stages` stages, an iteration that takes T on all layers takes T / stages + `pipeline_hop_s` on
each. A batch passes the stages one after the other and waits where the one before it is not through; its
sequences produce their tokens when it leaves the last. Meanwhile those that are in no batch, and new
ones, may start as soon as the first stage is free. So one sequence sees the latency of the whole pass,
and with full stages a batch ends every stage-time. At most `stages` batches are in flight, of at most
max_num_seqs / stages sequences each.

The scheduler plans a batch as any iteration (`scheduler.py`): sequences in flight are kept apart from
those it sees, and their places in the batch are taken from `max_num_seqs` until they are back.
"""

from __future__ import annotations

import numpy as np

from steersman.env.jit import inner
from steersman.env.layout import MOST_STAGES, NONE
from steersman.env.links import LAUNCH, linked
from steersman.env.scheduler import begin_iteration, end_iteration
from steersman.env.tables import facts_in, flight_in, pipes_in, replicas_in, run_in, sequences_in

_PARKED = -2
"""Batch of sequences that the batch being planned has no room for."""


@linked(LAUNCH)
def begin(memory: int, replica: int, at_s: float) -> None:
    """Start what can be started now, and set the time of the next event; idle if there is nothing."""
    owner = replicas_in(memory)[replica]
    if owner.stages == 1:
        begin_iteration(memory, replica, at_s)
        return
    pipe = pipes_in(memory)[replica]
    if pipe.launched - pipe.landed < owner.stages and pipe.free_s[0] <= at_s:
        _launch(memory, replica, at_s)
    next_s = np.inf
    if pipe.launched > pipe.landed:
        next_s = pipe.end_s[pipe.landed % MOST_STAGES]
        if pipe.launched - pipe.landed < owner.stages and pipe.free_s[0] > at_s:
            next_s = min(next_s, pipe.free_s[0])
    owner.iteration_end_s = next_s


@inner
def step(memory: int, replica: int) -> None:
    """An iteration ends, or the first stage is free; begin what follows."""
    owner = replicas_in(memory)[replica]
    at_s = owner.iteration_end_s
    if owner.stages == 1:
        end_iteration(memory, replica, at_s)
        begin_iteration(memory, replica, at_s)
        return
    pipe = pipes_in(memory)[replica]
    if pipe.launched > pipe.landed and pipe.end_s[pipe.landed % MOST_STAGES] <= at_s:
        _land(memory, replica, pipe.landed)
        pipe.landed += 1
        end_iteration(memory, replica, at_s)
        for i in range(owner.running):  # Until the next batch is planned they compute nothing.
            sequences_in(memory)[run_in(memory)[replica, i]].scheduled = 0
    begin(memory, replica, at_s)


@inner
def recall(memory: int, replica: int) -> None:
    """Take all sequences back from the stages, and what they were computing with them."""
    owner = replicas_in(memory)[replica]
    if owner.stages > 1:
        pipe = pipes_in(memory)[replica]
        while pipe.landed < pipe.launched:
            _land(memory, replica, pipe.landed)
            pipe.landed += 1
        for stage in range(MOST_STAGES):
            pipe.free_s[stage] = 0.0


@inner
def remove_in_flight(memory: int, replica: int, slot: int) -> None:
    """Its client left: its batch goes on without it."""
    owner = replicas_in(memory)[replica]
    flight = flight_in(memory)[replica]
    for i in range(owner.in_flight):
        if flight[i] == slot:
            owner.in_flight -= 1
            owner.max_num_seqs += 1
            for k in range(i, owner.in_flight):
                flight[k] = flight[k + 1]
            break


@inner
def _launch(memory: int, replica: int, at_s: float) -> None:
    """Plan a batch of what is not in flight and send it into the first stage."""
    owner = replicas_in(memory)[replica]
    pipe = pipes_in(memory)[replica]
    run = run_in(memory)[replica]
    most = max((owner.max_num_seqs + owner.in_flight) // owner.stages, 1)
    while owner.running > most:
        _lift(memory, replica, owner.running - 1, _PARKED)
    spare = max(owner.max_num_seqs - most, 0)
    owner.max_num_seqs -= spare
    begin_iteration(memory, replica, at_s)
    owner.max_num_seqs += spare
    duration_s = owner.iteration_end_s - at_s
    scheduled = 0
    i = 0
    while i < owner.running:
        if sequences_in(memory)[run[i]].scheduled > 0:
            _lift(memory, replica, i, pipe.launched)
            scheduled += 1
        else:
            i += 1
    _land(memory, replica, _PARKED)
    if scheduled == 0:
        return
    stage_s = duration_s / owner.stages + owner.pipeline_hop_s
    end_s = at_s
    for stage in range(owner.stages):
        end_s = max(end_s, pipe.free_s[stage]) + stage_s
        pipe.free_s[stage] = end_s
    pipe.end_s[pipe.launched % MOST_STAGES] = end_s
    pipe.launched += 1


@inner
def _lift(memory: int, replica: int, index: int, batch: int) -> None:
    """Move a sequence out of the scheduler's sight."""
    owner = replicas_in(memory)[replica]
    run = run_in(memory)[replica]
    slot = run[index]
    owner.running -= 1
    for i in range(index, owner.running):
        run[i] = run[i + 1]
    flight_in(memory)[replica, owner.in_flight] = slot
    facts_in(memory)[slot].batch = batch
    owner.in_flight += 1
    owner.max_num_seqs -= 1


@inner
def _land(memory: int, replica: int, batch: int) -> None:
    """Move the sequences of a batch back into the scheduler's sight."""
    owner = replicas_in(memory)[replica]
    flight = flight_in(memory)[replica]
    kept = 0
    for i in range(owner.in_flight):
        slot = flight[i]
        if facts_in(memory)[slot].batch == batch:
            facts_in(memory)[slot].batch = NONE
            run_in(memory)[replica, owner.running] = slot
            owner.running += 1
            owner.max_num_seqs += 1
        else:
            flight[kept] = slot
            kept += 1
    owner.in_flight = kept
