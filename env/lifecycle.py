"""How replicas come and go: cold start, drain, and what they cost meanwhile.

A replica is in one of four phases. It is paid for in all but the last::

    gone --start--> starting --cold_start_s--> serving --drain--> draining --empty--> gone
                        \\--drain--> gone           ^---------start-------/

A broken replica stays in `serving`, unhealthy and paid for, until it recovers. All functions take the
address of a cluster's memory (`layout.py`); what ends the work of a replica is in `engine.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env import layout as at
from steersman.env.adapters import forget_adapters
from steersman.env.jit import compiled, inner, njit
from steersman.env.kv import evict
from steersman.env.layout import DECODE, DRAINING, GONE, NONE, SERVING, STARTING
from steersman.env.tables import changes_in, common_in, ledger_in, replicas_in
from steersman.predictors import ledger as L
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ChangeKind, ReplicaChange

_on_health = compiled(L).on_health
_DRAINING = L.DRAINING
_KINDS = {
    ChangeKind.FAIL: at.FAIL,
    ChangeKind.RECOVER: at.RECOVER,
    ChangeKind.DRAIN: at.DRAIN,
    ChangeKind.START: at.START,
    ChangeKind.SLOW: at.SLOW,
}


class Phase(IntEnum):
    """Where a replica is in its life."""

    SERVING = SERVING
    DRAINING = DRAINING
    """It takes nothing new and finishes what it has."""
    PENDING = STARTING
    """It is paid for and will serve when its cold start is over."""
    GONE = GONE
    """It costs nothing; it can be started."""


def schedule(changes: Sequence[ReplicaChange], replicas: int) -> NDArray[Any]:
    """(changes,) CHANGE in order of time, as the engine reads them.

    Raises:
        ConfigError: a replica that does not exist, a time or a factor that makes no sense.
    """
    records: NDArray[Any] = np.zeros(len(changes), dtype=at.CHANGE)
    for row, change in enumerate(sorted(changes, key=lambda change: change.at_s)):
        what = f"event '{change.kind}' at_s = {change.at_s:g}"
        if not 0 <= change.replica < replicas:
            raise ConfigError(f"{what}: replica = {change.replica} is not in 0..{replicas - 1}")
        if not 0.0 <= change.at_s < np.inf:
            raise ConfigError(f"{what}: at_s must be a time from 0 on")
        if not 0.0 < change.factor < np.inf:
            raise ConfigError(f"{what}: factor = {change.factor} must be positive")
        records[row] = (change.at_s, change.replica, _KINDS[change.kind], change.factor)
    return records


@inner
def at_work(memory: int, replica: int) -> bool:
    """Whether a replica holds any request."""
    owner = replicas_in(memory)[replica]
    return bool(owner.running + owner.waiting + owner.in_flight + owner.moving > 0)


@njit
def start(memory: int, replica: int, cold_start_s: float) -> bool:
    """Start a replica that is gone, or stop its draining; False, and no change, if it does neither."""
    owner = replicas_in(memory)[replica]
    now_s = common_in(memory).now_s
    if owner.phase == DRAINING:
        owner.phase = SERVING
    elif owner.phase == GONE:
        owner.phase = STARTING
        owner.healthy = 1
        owner.ready_s = now_s + cold_start_s
        owner.billed_from_s = now_s
    else:
        return False
    tell(memory, replica)
    plan(memory)
    return True


@njit
def drain_replica(memory: int, replica: int) -> bool:
    """Let a replica finish what it has and go; False, and no change, if it is going or gone.

    One that is empty, broken or still starting is gone at once.
    """
    owner = replicas_in(memory)[replica]
    if owner.phase in (DRAINING, GONE):
        return False
    if owner.phase == STARTING or not at_work(memory, replica):
        retire(memory, replica, common_in(memory).now_s)
    else:
        owner.phase = DRAINING
        tell(memory, replica)
    return True


@inner
def retire(memory: int, replica: int, at_s: float) -> None:
    """An empty replica is gone, and its cache with it; nobody pays for it any more."""
    owner = replicas_in(memory)[replica]
    owner.phase = GONE
    owner.healthy = 1
    owner.factor = 1.0
    owner.billed_s += max(at_s - owner.billed_from_s, 0.0)
    owner.billed_from_s = np.inf
    owner.ready_s = np.inf
    lose(memory, replica)
    plan(memory)


@inner
def lose(memory: int, replica: int) -> None:
    """An empty replica stops and its cache is lost."""
    owner = replicas_in(memory)[replica]
    owner.iteration_end_s = np.inf
    evict(memory, replica, owner.cached_blocks)
    owner.losses += 1
    forget_adapters(memory, replica)
    tell(memory, replica)


@inner
def tell(memory: int, replica: int) -> None:
    """The router learns at once whether a replica is up and whether it drains.

    A decode replica takes nothing from it, and looks to it as if it were down.
    """
    owner = replicas_in(memory)[replica]
    up = owner.healthy == 1 and owner.phase <= DRAINING and owner.role != DECODE
    _on_health(ledger_in(memory), replica, up)
    ledger_in(memory)[replica, _DRAINING] = 1.0 if owner.phase == DRAINING else 0.0


@inner
def plan(memory: int) -> None:
    """Find out when the next change is due."""
    cluster = common_in(memory)
    due_s = np.inf
    if cluster.next_change < changes_in(memory).shape[0]:
        due_s = changes_in(memory)[cluster.next_change].at_s
    for replica in range(replicas_in(memory).shape[0]):
        due_s = min(due_s, replicas_in(memory)[replica].ready_s)
    cluster.next_change_s = due_s


@inner
def next_change(memory: int) -> tuple[int, int, float]:
    """Take the change that is due: its kind, replica and factor.

    The end of a cold start is applied here; its kind is NONE.
    """
    cluster = common_in(memory)
    for replica in range(replicas_in(memory).shape[0]):
        owner = replicas_in(memory)[replica]
        if owner.ready_s <= cluster.next_change_s:
            owner.phase = SERVING
            owner.ready_s = np.inf
            tell(memory, replica)
            plan(memory)
            return NONE, replica, 1.0
    change = changes_in(memory)[cluster.next_change]
    cluster.next_change += 1
    plan(memory)
    return change.kind, change.replica, change.factor
