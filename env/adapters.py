"""LoRA adapters on a replica: so many at once, loaded at first use, the least recently used out first.

A request for an adapter that is not there makes the iteration that admits it longer by `load_s`. An
adapter in use stays; while all places are in use, the head of the queue waits, and nobody overtakes it.
"""

from __future__ import annotations

from steersman.env.jit import inner
from steersman.env.layout import NONE
from steersman.env.tables import (
    adapters_in,
    common_in,
    flight_in,
    replicas_in,
    run_in,
    sequences_in,
    trace_in,
)


@inner
def adapter_fits(memory: int, replica: int, slot: int) -> bool:
    """Whether the adapter of a waiting request is loaded, or there is a place for it."""
    adapter = _adapter_of(memory, slot)
    return adapter == NONE or _place(memory, replica, adapter) != NONE


@inner
def use_adapter(memory: int, replica: int, slot: int) -> None:
    """A request was admitted: load its adapter if need be."""
    adapter = _adapter_of(memory, slot)
    if adapter == NONE:
        return
    owner = replicas_in(memory)[replica]
    place = adapters_in(memory)[replica, _place(memory, replica, adapter)]
    if place.adapter != adapter:
        place.adapter = adapter
        owner.loading_s += common_in(memory).adapter_load_s
        owner.adapter_loads += 1
    owner.adapter_uses += 1
    place.used = owner.adapter_uses


@inner
def forget_adapters(memory: int, replica: int) -> None:
    """The replica stopped."""
    adapters = adapters_in(memory)
    for i in range(adapters.shape[1]):
        adapters[replica, i].adapter = NONE
        adapters[replica, i].used = 0
    replicas_in(memory)[replica].loading_s = 0.0


@inner
def _adapter_of(memory: int, slot: int) -> int:
    adapter: int = trace_in(memory)[sequences_in(memory)[slot].row].adapter
    return adapter


@inner
def _place(memory: int, replica: int, adapter: int) -> int:
    """Where the adapter is, or may be loaded to; NONE if all others are in use."""
    adapters = adapters_in(memory)
    best = NONE
    for i in range(adapters.shape[1]):
        if adapters[replica, i].adapter == adapter:
            return i
        if best != NONE and adapters[replica, i].used >= adapters[replica, best].used:
            continue
        if not _in_use(memory, replica, adapters[replica, i].adapter):
            best = i
    return best


@inner
def _in_use(memory: int, replica: int, adapter: int) -> bool:
    if adapter == NONE:
        return False
    owner = replicas_in(memory)[replica]
    for i in range(owner.running):
        if _adapter_of(memory, run_in(memory)[replica, i]) == adapter:
            return True
    for i in range(owner.in_flight):
        if _adapter_of(memory, flight_in(memory)[replica, i]) == adapter:
            return True
    return False
