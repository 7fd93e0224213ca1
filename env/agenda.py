"""When each replica must be looked at next: trees of minima over the replicas.

A replica is advanced only when something happens on it that the router, the cost or a later turn could
notice. The leaves of the tree `EVENTS` say when that is, apart from scrapes, which only a decision can
notice (`SCRAPES`); the root says where it is first. Finding and changing it takes time logarithmic in
the number of replicas.
"""

from __future__ import annotations

from steersman.env.jit import inner
from steersman.env.leap import due_s
from steersman.env.tables import common_in, due_in, replicas_in

KEPT, LEFT = 1, 2
"""Ways a cluster has an agenda; left: nobody will ask what is due until all replicas are looked at."""
EVENTS = 0
SCRAPES = 1


@inner
def set_due(memory: int, tree: int, replica: int, at_s: float) -> None:
    """A replica must be looked at by `at_s`, and no sooner."""
    due = due_in(memory)[tree]
    node = due.shape[0] // 2 + replica
    due[node] = at_s
    while node > 1:
        node //= 2
        first_s = min(due[2 * node], due[2 * node + 1])
        if due[node] == first_s:
            break
        due[node] = first_s


@inner
def next_due_s(memory: int, tree: int) -> float:
    """When the first replica is due."""
    at_s: float = due_in(memory)[tree, 1]
    return at_s


@inner
def first_due(memory: int, tree: int) -> int:
    """The replica that is due first, the lowest of equals."""
    due = due_in(memory)[tree]
    leaves = due.shape[0] // 2
    node = 1
    while node < leaves:
        node *= 2
        if due[node + 1] < due[node]:
            node += 1
    return int(node - leaves)


@inner
def enter_agenda(memory: int, replica: int, after_s: float) -> None:
    """Say when a replica must be looked at next, which is not before `after_s`."""
    if common_in(memory).agenda == KEPT:
        set_due(memory, EVENTS, replica, max(due_s(memory, replica), after_s))
        set_due(memory, SCRAPES, replica, max(replicas_in(memory)[replica].next_scrape_s, after_s))
