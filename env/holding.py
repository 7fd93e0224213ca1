"""A router may hold an arrival back, and decide about it later; here that costs its client time.

Which requests are held, and in which order they are taken up, is the router's business
(`agents/queueing/`). The cluster only knows since when each has been waiting.
"""

from __future__ import annotations

import numpy as np

from steersman.env.account import refused
from steersman.env.jit import inner, njit
from steersman.env.layout import NONE
from steersman.env.tables import common_in, outcomes_in


@inner
def hold(memory: int) -> None:
    """Put the pending request aside: the next may arrive, and time goes on."""
    cluster = common_in(memory)
    outcomes_in(memory)[cluster.pending].arrival_s = min(cluster.held_since_s, cluster.now_s)
    cluster.held_since_s = np.inf
    cluster.pending = NONE


@inner
def take_up(memory: int, row: int) -> None:
    """A request that was held is the pending one again."""
    cluster = common_in(memory)
    cluster.held_since_s = outcomes_in(memory)[row].arrival_s
    cluster.pending = row


@njit
def hold_one(memory: int) -> None:
    """`hold`, to be called from Python."""
    hold(memory)


@njit
def take_up_one(memory: int, row: int) -> None:
    """`take_up`, to be called from Python."""
    take_up(memory, row)


@njit
def give_up(memory: int, status: int) -> None:
    """The pending request ends without a replica, in whatever way `status` says."""
    cluster = common_in(memory)
    row = cluster.pending
    cluster.pending = NONE
    refused(memory, row, NONE, status)
