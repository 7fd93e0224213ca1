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

from steersman.env.account import aborted, accrue, dispatched, moved, refused
from steersman.env.agenda import EVENTS, SCRAPES, first_due, next_due_s, set_due
from steersman.env.disaggregation import destination, leave, next_arrival_s
from steersman.env.jit import njit
from steersman.env.kv import forget_span, release
from steersman.env.layout import (
    CANCELLED,
    DECODE,
    DRAIN,
    DRAINING,
    FAIL,
    FAILED,
    GONE,
    MOVING,
    NONE,
    PENDING,
    PRIORITIES,
    RECOVER,
    REJECTED,
    RUNNING,
    SERVING,
    SLOW,
    START,
    UNFINISHED,
    births_in,
    common_in,
    events_in,
    facts_in,
    flight_in,
    outcomes_in,
    queue_in,
    replicas_in,
    roots_in,
    run_in,
    sequences_in,
    trace_in,
)
from steersman.env.leap import begin as begin_leaping
from steersman.env.leap import due_s, write_down
from steersman.env.leap import step as step_leaping
from steersman.env.lifecycle import at_work, drain_replica, lose, next_change, retire, start, tell
from steersman.env.pipeline import begin, recall, remove_in_flight, step
from steersman.env.queues import first_waiting, push_back, remove_waiting, take_slot
from steersman.env.scheduler import remove_running
from steersman.env.scrapes import scrape, skip_scrapes


@njit
def next_request(memory: int) -> int:
    """Advance to the next arrival and return its row; NONE when no more will arrive."""
    return next_request_by(memory, np.inf)


@njit
def next_request_by(memory: int, until_s: float) -> int:
    """As `next_request`, but stop at `until_s` if nothing arrives by then, and return NONE."""
    row = _arrive(memory, until_s)
    if row != NONE or until_s < np.inf:
        _catch_up(memory)
    return row


@njit
def _arrive(memory: int, until_s: float) -> int:
    """As `next_request_by`, but replicas are left where they are: nobody will look at them."""
    cluster = common_in(memory)
    at_s, from_heap = _play_to_arrival(memory, until_s)
    if at_s > until_s:
        cluster.now_s = until_s
        return NONE
    if at_s == np.inf:
        return NONE
    row = _pop_birth(memory) if from_heap else roots_in(memory)[cluster.next_root]
    if not from_heap:
        cluster.next_root += 1
    cluster.pending = row
    cluster.now_s = at_s
    return row


@njit
def _catch_up(memory: int) -> None:
    """Bring every replica on which something is due to the present."""
    at_s = common_in(memory).now_s
    if common_in(memory).agenda == 0:
        _advance_all(memory, at_s)
        return
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
    if owner.healthy == 0 or owner.phase != SERVING or owner.role == DECODE:
        refused(memory, row, replica, FAILED)
        return NONE
    source = trace_in(memory)[row]
    if source.input_tokens + source.output_tokens > owner.token_limit:
        refused(memory, row, replica, REJECTED)
        return NONE
    slot = _new_slot(memory, row, replica)
    facts = facts_in(memory)[slot]
    facts.output_p50 = output_p50
    facts.uncached = uncached
    facts.raw_ttft_s = raw_ttft_s
    facts.raw_tpot_s = raw_tpot_s
    _accept(memory, replica, slot)
    return slot


@njit
def _new_slot(memory: int, row: int, replica: int) -> int:
    """A slot with what the trace says of a request, nothing of which is computed yet."""
    now_s = common_in(memory).now_s
    owner = replicas_in(memory)[replica]
    source = trace_in(memory)[row]
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
    facts.arrival_s = now_s
    facts.first_token_s = np.nan
    facts.weight = source.weight
    facts.ttft_slo_s = source.ttft_slo_s
    facts.tpot_slo_s = source.tpot_slo_s
    facts.charged = 0.0
    facts.cached_tokens = 0
    facts.looked_up = 0
    facts.preemptions = 0
    facts.span_blocks = 0
    facts.span_shared = 0
    facts.leaf = NONE
    facts.received = 0
    facts.target = NONE
    facts.batch = NONE
    facts.deadline_s = np.inf
    if source.patience_s > 0.0:
        facts.deadline_s = now_s + source.patience_s
        owner.patience_end_s = min(owner.patience_end_s, facts.deadline_s)
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
    _wake(memory, replica, now_s)
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
            _step(memory, replica, owner.iteration_end_s)
    if at_s < np.inf:
        cluster.now_s = max(cluster.now_s, at_s)
    return True


@njit
def cancel(memory: int, slot: int) -> None:
    """The client went away: free what the request holds now. A running iteration takes its time."""
    replica = facts_in(memory)[slot].replica
    now_s = common_in(memory).now_s
    _settle(memory, replica)
    _cancel_at(memory, slot, now_s)
    _enter_agenda(memory, replica, now_s)


@njit
def fail(memory: int, replica: int) -> None:
    """A replica breaks: all it holds fails, its caches are lost, it accepts nothing.

    One that drains or starts is gone for good.
    """
    now_s = common_in(memory).now_s
    owner = replicas_in(memory)[replica]
    _settle(memory, replica)
    _abort_all(memory, replica, now_s, FAILED)
    if owner.phase == SERVING:
        owner.healthy = 0
        lose(memory, replica)
    elif owner.phase != GONE:
        retire(memory, replica, now_s)
    _enter_agenda(memory, replica, now_s)


@njit
def recover(memory: int, replica: int) -> None:
    """A broken replica is back, empty."""
    owner = replicas_in(memory)[replica]
    if owner.phase == SERVING:
        owner.healthy = 1
        tell(memory, replica)


@njit
def settle(memory: int) -> None:
    """Bring every replica to the present, and write down its batch sequence by sequence."""
    for replica in range(replicas_in(memory).shape[0]):
        _settle(memory, replica)
        _enter_agenda(memory, replica, common_in(memory).now_s)


@njit
def step_only(memory: int) -> None:
    """Play every iteration by itself from now on, since something happens that leaps do not cover."""
    settle(memory)
    for replica in range(replicas_in(memory).shape[0]):
        replicas_in(memory)[replica].fast = 0
    common_in(memory).agenda = 0


@njit
def drain(memory: int, drain_s: float) -> None:
    """Arrivals stop: play what is in flight, for so many seconds; what is left is unfinished."""
    cluster = common_in(memory)
    if cluster.pending != NONE:
        refused(memory, cluster.pending, NONE, UNFINISHED)
        cluster.pending = NONE
    until_s = cluster.now_s + drain_s
    last_s = cluster.now_s
    while cluster.next_change_s <= until_s and cluster.next_change_s < np.inf:
        last_s = _play_out(memory, cluster.next_change_s, last_s)
        if not _at_work(memory):
            break
        _change(memory)
        last_s = cluster.now_s
    last_s = _play_out(memory, until_s, last_s)
    if _at_work(memory):
        last_s = until_s
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
        row = _arrive(memory, np.inf)
        if row == NONE:
            break
        if common_in(memory).agenda == 0:
            _catch_up(memory)
        elif choices[row] >= 0:
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
        if owner.patience_end_s < min(owner.iteration_end_s, owner.next_scrape_s):
            if owner.patience_end_s > until_s:
                return
            _lose_patience(memory, replica)
        elif owner.iteration_end_s <= owner.next_scrape_s:
            if owner.iteration_end_s > until_s:
                return
            _step(memory, replica, min(until_s, owner.next_scrape_s))
        else:
            if owner.next_scrape_s > until_s:
                return
            scrape(memory, replica)


@njit
def _step(memory: int, replica: int, until_s: float) -> None:
    """Play the current iteration, which ends by `until_s`, and maybe more that end by then."""
    owner = replicas_in(memory)[replica]
    if owner.fast == 1:
        step_leaping(memory, replica, until_s)
        return
    at_s = owner.iteration_end_s
    step(memory, replica)
    owner.ended_s = at_s
    if owner.phase == DRAINING and not at_work(memory, replica):
        retire(memory, replica, at_s)


@njit
def _settle(memory: int, replica: int) -> None:
    if replicas_in(memory)[replica].fast == 1:
        _advance(memory, replica, common_in(memory).now_s)
        write_down(memory, replica, 1)


@njit
def _enter_agenda(memory: int, replica: int, after_s: float) -> None:
    """Say when a replica must be looked at next, which is not before `after_s`."""
    if common_in(memory).agenda == 1:
        set_due(memory, EVENTS, replica, max(due_s(memory, replica), after_s))
        set_due(memory, SCRAPES, replica, max(replicas_in(memory)[replica].next_scrape_s, after_s))


@njit
def _play_to_arrival(memory: int, until_s: float) -> tuple[float, bool]:
    """Play all that may bring an arrival forward, or changes a replica, before the next arrival.

    Returns:
        When the next arrival is, by then or later, and whether it is a session's next turn.
    """
    cluster = common_in(memory)
    while cluster.agenda == 1:
        at_s, from_heap = _next_arrival(memory)
        due = next_due_s(memory, EVENTS)
        if cluster.unborn == 0 or due > min(at_s, until_s) or due == np.inf:
            return at_s, from_heap
        replica = first_due(memory, EVENTS)
        _advance(memory, replica, due)
        _enter_agenda(memory, replica, due)
    while True:
        at_s, from_heap = _next_arrival(memory)
        replica, end_s = NONE, np.inf
        if cluster.unborn > 0 or cluster.coupled == 1:
            replica, end_s = _first_to_end(memory)
        next_s = min(at_s, end_s, until_s)
        if cluster.next_change_s <= next_s < np.inf:
            _change(memory)
        elif end_s <= next_s and end_s < np.inf:
            _play(memory, replica, end_s)
        else:
            return at_s, from_heap


@njit
def _advance_all(memory: int, at_s: float) -> None:
    common_in(memory).now_s = at_s
    for replica in range(replicas_in(memory).shape[0]):
        _advance(memory, replica, at_s)


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
def _first_to_end(memory: int) -> tuple[int, float]:
    """The replica where something can end first, and when; NONE is a transfer between replicas."""
    best, best_s = 0, _next_end_s(memory, 0)
    for replica in range(1, replicas_in(memory).shape[0]):
        end_s = _next_end_s(memory, replica)
        if end_s < best_s:
            best, best_s = replica, end_s
    if next_arrival_s(memory) < best_s:
        best, best_s = NONE, next_arrival_s(memory)
    return best, best_s


@njit
def _next_end_s(memory: int, replica: int) -> float:
    """When an iteration ends or a client loses patience."""
    owner = replicas_in(memory)[replica]
    end_s: float = min(owner.iteration_end_s, owner.patience_end_s)
    return end_s


@njit
def _play_out(memory: int, until_s: float, last_s: float) -> float:
    """Play what is in flight up to `until_s`; returns when it last did anything, or `last_s`."""
    if common_in(memory).coupled == 1:
        replica, end_s = _first_to_end(memory)
        while end_s <= until_s and end_s < np.inf:
            last_s = _play_one(memory, replica, end_s, last_s)
            replica, end_s = _first_to_end(memory)
        return last_s
    if common_in(memory).agenda == 1:
        return _leap_out(memory, until_s, last_s)
    for replica in range(replicas_in(memory).shape[0]):
        end_s = _next_end_s(memory, replica)
        while end_s <= until_s and end_s < np.inf:
            last_s = _play_one(memory, replica, end_s, last_s)
            end_s = _next_end_s(memory, replica)
        if at_work(memory, replica) and until_s < np.inf:
            _advance(memory, replica, until_s)
    return last_s


@njit
def _leap_out(memory: int, until_s: float, last_s: float) -> float:
    """As `_play_out`, where replicas may leap; then their batches are written down."""
    for replica in range(replicas_in(memory).shape[0]):
        owner = replicas_in(memory)[replica]
        while owner.iteration_end_s <= until_s and owner.iteration_end_s < np.inf:
            _advance(memory, replica, min(max(due_s(memory, replica), owner.iteration_end_s), until_s))
            last_s = max(last_s, owner.ended_s)
        if at_work(memory, replica):
            _advance(memory, replica, until_s)
        write_down(memory, replica, 1)
    return last_s


@njit
def _play_one(memory: int, replica: int, end_s: float, last_s: float) -> float:
    if replica == NONE or replicas_in(memory)[replica].iteration_end_s < np.inf:
        last_s = max(last_s, end_s)
    _play(memory, replica, end_s)
    return last_s


@njit
def _play(memory: int, replica: int, end_s: float) -> None:
    """Play what `_first_to_end` has found."""
    if replica == NONE:
        _deliver(memory, end_s)
    else:
        _advance(memory, replica, end_s)


@njit
def _deliver(memory: int, at_s: float) -> None:
    """A KV cache arrives: its request queues at a decode replica, or fails if there is none."""
    slot = common_in(memory).transfers
    old = facts_in(memory)[slot].replica
    replica = destination(memory, slot)
    _advance(memory, old, at_s)
    leave(memory, slot)
    if replica == NONE:
        aborted(memory, slot, at_s, FAILED)
    else:
        _advance(memory, replica, at_s)
        moved(memory, slot, replica, at_s)
        sequence = sequences_in(memory)[slot]
        facts_in(memory)[slot].received = sequence.computed
        sequence.computed = 0
        sequence.scheduled = 0
        sequence.hashes = 0
        push_back(memory, replica, slot)
        replicas_in(memory)[replica].try_admission = 1
        _wake(memory, replica, at_s)
    if replicas_in(memory)[old].phase == DRAINING and not at_work(memory, old):
        retire(memory, old, at_s)
    elif replicas_in(memory)[old].waiting > 0:
        _wake(memory, old, at_s)


@njit
def _wake(memory: int, replica: int, at_s: float) -> None:
    """There is something new to do."""
    owner = replicas_in(memory)[replica]
    if owner.fast == 1:
        if owner.iteration_end_s == np.inf:
            begin_leaping(memory, replica, at_s)
    elif owner.iteration_end_s == np.inf or owner.stages > 1:
        begin(memory, replica, at_s)


@njit
def _at_work(memory: int) -> bool:
    """Whether anything is in flight."""
    busy = 0
    for replica in range(replicas_in(memory).shape[0]):
        busy += at_work(memory, replica)
    return busy > 0


@njit
def _change(memory: int) -> None:
    """Apply the next change that is due, after all that ends by then."""
    cluster = common_in(memory)
    at_s = max(cluster.next_change_s, cluster.now_s)
    _advance_all(memory, at_s)
    kind, replica, factor = next_change(memory)
    if kind == FAIL:
        fail(memory, replica)
    elif kind == RECOVER:
        recover(memory, replica)
    elif kind == DRAIN:
        drain_replica(memory, replica)
    elif kind == START:
        start(memory, replica, replicas_in(memory)[replica].cold_start_s)
    elif kind == SLOW:
        replicas_in(memory)[replica].factor = factor


@njit
def _lose_patience(memory: int, replica: int) -> None:
    """Clients whose first token is overdue leave; find out who will be the next."""
    owner = replicas_in(memory)[replica]
    at_s = owner.patience_end_s
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


@njit
def _wait_on(memory: int, slot: int, at_s: float) -> float:
    """Until when its client still waits for a first token; infinite if it has one, or has left now."""
    if sequences_in(memory)[slot].produced > 0:
        return np.inf
    deadline_s: float = facts_in(memory)[slot].deadline_s
    if deadline_s > at_s:
        return deadline_s
    _cancel_at(memory, slot, at_s)
    return np.inf


@njit
def _cancel_at(memory: int, slot: int, at_s: float) -> None:
    replica = facts_in(memory)[slot].replica
    _remove(memory, replica, slot)
    aborted(memory, slot, at_s, CANCELLED)
    replicas_in(memory)[replica].try_admission = 1


@njit
def _remove(memory: int, replica: int, slot: int) -> None:
    """Take a request out of the batch or the queue and free its memory."""
    if sequences_in(memory)[slot].state == MOVING:
        leave(memory, slot)
    elif facts_in(memory)[slot].batch != NONE:
        remove_in_flight(memory, replica, slot)
        release(memory, replica, slot)
    elif sequences_in(memory)[slot].state == RUNNING:
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
    recall(memory, replica)
    owner = replicas_in(memory)[replica]
    while owner.running > 0:
        slot = run_in(memory)[replica, owner.running - 1]
        _remove(memory, replica, slot)
        aborted(memory, slot, at_s, status)
    slot = common_in(memory).transfers
    while owner.moving > 0:
        following = sequences_in(memory)[slot].next
        if facts_in(memory)[slot].replica == replica:
            _remove(memory, replica, slot)
            aborted(memory, slot, at_s, status)
        slot = following
    while owner.waiting > 0:
        slot = first_waiting(memory, replica)
        _remove(memory, replica, slot)
        aborted(memory, slot, at_s, status)
