"""Several replicas on one GPU: what an iteration costs while the neighbours work.

**Time slicing.** The GPU is given to the busy replicas in turn. A preemptive turn lasts `slice_ms` times
the replica's weight; without preemption it goes on to the end of an iteration, so it lasts a whole
number of them, at least one. With the sum over the neighbours that are busy when it starts, an
iteration takes::

    alone_s * (turn + Σ turn of busy neighbours) / turn

which is exact in the mean over many turns; the wait for the first turn is spread over all.

**MPS.** Kernels run side by side, at a cost of `overhead` for all, until together they ask for more than
there is: `alone_s * (1 + overhead) * max(1, Σ demand of all that are busy)`.

Replicas that share a GPU affect each other, so a cluster with any is played in order of time.
"""

from __future__ import annotations

import math

import numpy as np

from steersman.env.jit import inner
from steersman.env.layout import MPS, NONE
from steersman.env.tables import replicas_in, shares_in


@inner
def shared_s(memory: int, replica: int, alone_s: float) -> float:
    """What an iteration that starts now takes, if it took `alone_s` with the GPU to itself."""
    shares = shares_in(memory)
    own = shares[replica]
    own.alone_s = alone_s
    if own.gpu == NONE:
        return alone_s
    turns_s = _turn_s(memory, replica)
    own_turn_s = turns_s
    demand = own.demand
    for other in range(shares.shape[0]):
        if other == replica or shares[other].gpu != own.gpu:
            continue
        if replicas_in(memory)[other].iteration_end_s < np.inf:
            turns_s += _turn_s(memory, other)
            demand += shares[other].demand
    if own.kind == MPS:
        return float(alone_s * (1.0 + own.overhead) * max(1.0, demand))
    return float(alone_s * (turns_s / own_turn_s))


@inner
def _turn_s(memory: int, replica: int) -> float:
    share = shares_in(memory)[replica]
    turn_s: float = share.turn_s
    if share.preemptive == 0 and share.alone_s > 0.0:
        turn_s = math.ceil(turn_s / share.alone_s) * share.alone_s
    return turn_s
