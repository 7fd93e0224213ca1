"""Where what happens on one replica may matter elsewhere: what can happen first, on any of them."""

from __future__ import annotations

from steersman.env.delivery import deliver
from steersman.env.disaggregation import next_arrival_s
from steersman.env.jit import inner
from steersman.env.layout import NONE
from steersman.env.playing import advance
from steersman.env.tables import replicas_in


@inner
def first_to_end(memory: int) -> tuple[int, float]:
    """The replica where something can end first, and when; NONE is a transfer between replicas."""
    best, best_s = 0, next_end_s(memory, 0)
    for replica in range(1, replicas_in(memory).shape[0]):
        end_s = next_end_s(memory, replica)
        if end_s < best_s:
            best, best_s = replica, end_s
    if next_arrival_s(memory) < best_s:
        best, best_s = NONE, next_arrival_s(memory)
    return best, best_s


@inner
def next_end_s(memory: int, replica: int) -> float:
    """When an iteration ends or a client loses patience."""
    owner = replicas_in(memory)[replica]
    end_s: float = min(owner.iteration_end_s, owner.patience_end_s)
    return end_s


@inner
def play(memory: int, replica: int, end_s: float) -> None:
    """Play what `_first_to_end` has found."""
    if replica == NONE:
        deliver(memory, NONE, end_s)
    else:
        advance(memory, replica, end_s)
