"""The engine of a cluster: what happens between two decisions, in order of time.

All functions take the address of a cluster's buffer (`layout.py`). Replicas do not affect each other
between decisions, so each is advanced on its own, and only when something is due on it (`agenda.py`);
while a session's next turn depends on an answer that is still being produced, the cluster's events are
played in order of time.

Iterations are stepped through (`scheduler.py`) or, where that changes nothing, played many at a time
(`leap.py`). Nothing outside the compiled modules relies on which.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.account import aborted, accrue, dispatched, refused
from steersman.env.agenda import EVENTS, SCRAPES, first_due, next_due_s, set_due
from steersman.env.jit import njit
from steersman.env.kv import evict, forget_span, release
from steersman.env.layout import (
    CANCELLED,
    FAILED,
    NONE,
    PENDING,
    REJECTED,
    RUNNING,
    UNFINISHED,
    births_in,
    common_in,
    events_in,
    facts_in,
    ledger_in,
    outcomes_in,
    replicas_in,
    roots_in,
    run_in,
    sequences_in,
    trace_in,
)
from steersman.env.leap import begin, due_s, leave, step
from steersman.env.queues import first_waiting, push_back, remove_waiting, take_slot
from steersman.env.scheduler import remove_running
from steersman.env.scrapes import scrape, skip_scrapes
from steersman.predictors import ledger as plain_ledger

_HEALTHY = plain_ledger.HEALTHY


@njit
def next_request(memory: int) -> int:
    """Advance to the next arrival and return its row; NONE when no more will arrive."""
    row = _arrive(memory)
    if row != NONE:
        _catch_up(memory)
    return row


@njit
def _arrive(memory: int) -> int:
    """As `next_request`, but replicas are left where they are: nobody will look at them."""
    cluster = common_in(memory)
    while True:
        at_s, from_heap = _next_arrival(memory)
        next_s = next_due_s(memory, EVENTS)
        if cluster.unborn == 0 or next_s > at_s or next_s == np.inf:
            break
        replica = first_due(memory, EVENTS)
        _advance(memory, replica, next_s)
        _enter_agenda(memory, replica, next_s)
    if at_s == np.inf:
        return NONE
    row = _pop_birth(memory) if from_heap else roots_in(memory)[cluster.next_root]
    if not from_heap:
        cluster.next_root += 1
    cluster.now_s = at_s
    cluster.pending = row
    return row


@njit
def _catch_up(memory: int) -> None:
    """Bring every replica on which something is due to the present."""
    at_s = common_in(memory).now_s
    after_s = np.nextafter(at_s, np.inf)
    for tree in (EVENTS, SCRAPES):
        while next_due_s(memory, tree) <= at_s:
            replica = first_due(memory, tree)
            _advance(memory, replica, at_s)
            _enter_agenda(memory, replica, after_s)


@njit
def dispatch(
    memory: int,
    replica: int,
    output_p50: float,
    uncached: float,
    raw_ttft_s: float,
    raw_tpot_s: float,
) -> int:
    """Send the pending request to a replica; returns its slot, or NONE if it was not accepted.

    The caller has made sure that a slot is free. See `Cluster.dispatch` for what is refused.
    """
    cluster = common_in(memory)
    row = cluster.pending
    cluster.pending = NONE
    if replica < 0:
        refused(memory, row, NONE, REJECTED)
        return NONE
    owner = replicas_in(memory)[replica]
    if owner.healthy == 0:
        refused(memory, row, replica, FAILED)
        return NONE
    source = trace_in(memory)[row]
    if source.input_tokens + source.output_tokens > owner.token_limit:
        refused(memory, row, replica, REJECTED)
        return NONE
    slot = take_slot(memory)
    sequence = sequences_in(memory)[slot]
    sequence.prompt = source.input_tokens
    sequence.output = source.output_tokens
    sequence.produced = 0
    sequence.computed = 0
    sequence.scheduled = 0
    sequence.private_blocks = 0
    sequence.shared = 0
    sequence.hashes = 0
    if owner.entry_tokens > 0:
        sequence.hashes = min(source.hash_count, source.input_tokens // owner.entry_tokens)
    sequence.hash_start = source.hash_start
    sequence.row = row
    sequence.priority = source.priority
    facts = facts_in(memory)[slot]
    facts.replica = replica
    facts.arrival_s = cluster.now_s
    facts.first_token_s = np.nan
    facts.weight = source.weight
    facts.ttft_slo_s = source.ttft_slo_s
    facts.tpot_slo_s = source.tpot_slo_s
    facts.output_p50 = output_p50
    facts.uncached = uncached
    facts.raw_ttft_s = raw_ttft_s
    facts.raw_tpot_s = raw_tpot_s
    facts.charged = 0.0
    facts.cached_tokens = 0
    facts.looked_up = 0
    facts.preemptions = 0
    facts.span_blocks = 0
    facts.span_shared = 0
    facts.leaf = NONE
    _accept(memory, replica, slot)
    return slot


@njit
def _accept(memory: int, replica: int, slot: int) -> None:
    """A replica gets a request; its iteration, if one is under way, goes on as it is."""
    now_s = common_in(memory).now_s
    owner = replicas_in(memory)[replica]
    if owner.fast == 1:
        _advance(memory, replica, now_s)
    dispatched(memory, slot, now_s)
    push_back(memory, replica, slot)
    owner.try_admission = 1
    if owner.iteration_end_s == np.inf:
        begin(memory, replica, now_s)
    _enter_agenda(memory, replica, now_s)


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
    _settle(memory, replica)
    _remove(memory, replica, slot)
    aborted(memory, slot, common_in(memory).now_s, CANCELLED)
    owner = replicas_in(memory)[replica]
    owner.try_admission = 1


@njit
def fail(memory: int, replica: int) -> None:
    """A replica breaks: all it holds fails, its caches are lost, it accepts nothing."""
    _settle(memory, replica)
    _abort_all(memory, replica, common_in(memory).now_s, FAILED)
    owner = replicas_in(memory)[replica]
    owner.iteration_end_s = np.inf
    evict(memory, replica, owner.cached_blocks)
    owner.healthy = 0
    _enter_agenda(memory, replica, common_in(memory).now_s)
    ledger_in(memory)[replica, _HEALTHY] = 0.0


@njit
def recover(memory: int, replica: int) -> None:
    """A replica is back, empty."""
    replicas_in(memory)[replica].healthy = 1
    ledger_in(memory)[replica, _HEALTHY] = 1.0


@njit
def settle(memory: int) -> None:
    """Bring every replica to the present, and write down its batch sequence by sequence."""
    for replica in range(replicas_in(memory).shape[0]):
        _settle(memory, replica)
        _enter_agenda(memory, replica, common_in(memory).now_s)


@njit
def drain(memory: int, drain_s: float) -> None:
    """Arrivals stop: play what is in flight, for so many seconds; what is left is unfinished."""
    cluster = common_in(memory)
    if cluster.pending != NONE:
        refused(memory, cluster.pending, NONE, UNFINISHED)
        cluster.pending = NONE
    until_s = cluster.now_s + drain_s
    last_s = cluster.now_s
    for replica in range(replicas_in(memory).shape[0]):
        owner = replicas_in(memory)[replica]
        while owner.iteration_end_s <= until_s and owner.iteration_end_s < np.inf:
            _advance(memory, replica, min(max(due_s(memory, replica), owner.iteration_end_s), until_s))
            last_s = max(last_s, owner.ended_s)
        if owner.running + owner.waiting > 0:
            last_s = until_s
            _advance(memory, replica, until_s)
        leave(memory, replica, 1)
    cluster.now_s = last_s
    for replica in range(replicas_in(memory).shape[0]):
        _abort_all(memory, replica, last_s, UNFINISHED)
        replicas_in(memory)[replica].iteration_end_s = np.inf
    cluster.next_root = roots_in(memory).shape[0]
    cluster.born = 0
    cluster.unborn = 0
    for row in range(outcomes_in(memory).shape[0]):
        if outcomes_in(memory)[row].status == PENDING:
            outcomes_in(memory)[row].status = UNFINISHED


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
    while True:
        if common_in(memory).free_slots == 0:
            _catch_up(memory)
            if common_in(memory).free_slots == 0:
                return count
        row = _arrive(memory)
        if row == NONE:
            break
        if choices[row] >= 0:
            _advance(memory, choices[row], common_in(memory).now_s)
        prompt = float(trace_in(memory)[row].input_tokens)
        dispatch(memory, choices[row], output_p50[row], prompt, 0.0, 0.0)
        count += 1
    _catch_up(memory)
    return count


@njit
def _advance(memory: int, replica: int, until_s: float) -> None:
    """Play one replica's iterations and scrapes up to and including `until_s`."""
    owner = replicas_in(memory)[replica]
    if owner.fast == 1 and owner.next_scrape_s <= until_s:
        skip_scrapes(memory, replica, until_s)
    while True:
        if owner.iteration_end_s <= owner.next_scrape_s:
            if owner.iteration_end_s > until_s:
                return
            step(memory, replica, min(until_s, owner.next_scrape_s))
        else:
            if owner.next_scrape_s > until_s:
                return
            scrape(memory, replica)


@njit
def _settle(memory: int, replica: int) -> None:
    if replicas_in(memory)[replica].fast == 1:
        _advance(memory, replica, common_in(memory).now_s)
        leave(memory, replica, 1)


@njit
def _enter_agenda(memory: int, replica: int, after_s: float) -> None:
    """Say when a replica must be looked at next, which is not before `after_s`."""
    set_due(memory, EVENTS, replica, max(due_s(memory, replica), after_s))
    set_due(memory, SCRAPES, replica, max(replicas_in(memory)[replica].next_scrape_s, after_s))


@njit
def _next_arrival(memory: int) -> tuple[float, bool]:
    """When the next known arrival is, and whether it is a session's next turn."""
    cluster = common_in(memory)
    root_s = np.inf
    if cluster.next_root < roots_in(memory).shape[0]:
        root_s = trace_in(memory)[roots_in(memory)[cluster.next_root]].arrival_s
    if cluster.born > 0 and births_in(memory)[0].at_s < root_s:
        return births_in(memory)[0].at_s, True
    return root_s, False


@njit
def _pop_birth(memory: int) -> int:
    """Take the earliest child from the heap."""
    cluster = common_in(memory)
    births = births_in(memory)
    row: int = births[0].row
    cluster.born -= 1
    size = cluster.born
    last_s = births[size].at_s
    last_row = births[size].row
    i = 0
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and (
            births[right].at_s < births[child].at_s
            or (births[right].at_s == births[child].at_s and births[right].row < births[child].row)
        ):
            child = right
        if last_s < births[child].at_s or (
            last_s == births[child].at_s and last_row < births[child].row
        ):
            break
        births[i].at_s = births[child].at_s
        births[i].row = births[child].row
        i = child
    births[i].at_s = last_s
    births[i].row = last_row
    return row


@njit
def _remove(memory: int, replica: int, slot: int) -> None:
    """Take a request out of the batch or the queue and free its memory."""
    if sequences_in(memory)[slot].state == RUNNING:
        owner = replicas_in(memory)[replica]
        for i in range(owner.running):
            if run_in(memory)[replica, i] == slot:
                remove_running(memory, replica, i)
                break
        release(memory, replica, slot)
    else:
        forget_span(memory, replica, slot)
        remove_waiting(memory, replica, slot)


@njit
def _abort_all(memory: int, replica: int, at_s: float, status: int) -> None:
    owner = replicas_in(memory)[replica]
    while owner.running > 0:
        slot = run_in(memory)[replica, owner.running - 1]
        _remove(memory, replica, slot)
        aborted(memory, slot, at_s, status)
    while owner.waiting > 0:
        slot = first_waiting(memory, replica)
        _remove(memory, replica, slot)
        aborted(memory, slot, at_s, status)
