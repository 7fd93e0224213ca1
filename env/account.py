"""What an event means to the router's ledger, to the outcome table and to the cost.

The **cost** is EVALUATION's, in continuous time: until its first token a request accrues
`weight / TTFT_SLO` a second, then until its last `weight / ((output - 1) * TPOT_SLO)`, so that at its
end it has accrued exactly `weight * (TTFT / TTFT_SLO + TPOT / TPOT_SLO)`, without EVALUATION's caps.
While the router holds it back (`holding.py`) nothing accrues; that share follows at its dispatch. A
missed service level costs `2 * weight` more, charged at the first token if TTFT missed and otherwise at
the last if TPOT did. A request that does not end well is charged up to `42 * weight` in all.

Per replica, only the sum of the rates is kept: constant work per event.
"""

from __future__ import annotations

import numpy as np

from steersman.env.jit import compiled, inner
from steersman.env.layout import CANCELLED, NONE, OK
from steersman.env.queues import free_slot
from steersman.env.tables import (
    births_in,
    common_in,
    facts_in,
    ledger_in,
    outcomes_in,
    replicas_in,
    sequences_in,
    trace_in,
)
from steersman.predictors import ledger as plain_ledger

SLO_MISS_COST = 2.0
FAILURE_COST = 42.0

_ledger = compiled(plain_ledger)
_on_dispatch = _ledger.on_dispatch
_on_first_token = _ledger.on_first_token
_on_finish = _ledger.on_finish
_on_abort = _ledger.on_abort
_INFLIGHT_PREFILL = plain_ledger.INFLIGHT_PREFILL


@inner
def dispatched(memory: int, slot: int, at_s: float) -> None:
    """A request was sent to its replica; its facts are filled in."""
    facts = facts_in(memory)[slot]
    sequence = sequences_in(memory)[slot]
    replica = facts.replica
    _on_dispatch(ledger_in(memory)[replica], float(sequence.prompt), facts.uncached, facts.output_p50)
    accrue(memory, replica, at_s)
    owner = replicas_in(memory)[replica]
    owner.cost += facts.weight * (at_s - facts.arrival_s) / facts.ttft_slo_s
    owner.cost_rate += facts.weight / facts.ttft_slo_s
    owner.inflight += 1
    outcome = outcomes_in(memory)[sequence.row]
    outcome.arrival_s = facts.arrival_s
    outcome.replica = replica


@inner
def first_token(memory: int, slot: int, at_s: float) -> None:
    """Its first token appeared."""
    facts = facts_in(memory)[slot]
    sequence = sequences_in(memory)[slot]
    replica = facts.replica
    ttft_s = at_s - facts.arrival_s
    facts.first_token_s = at_s
    since_dispatch_s = at_s - facts.dispatched_s
    _on_first_token(ledger_in(memory)[replica], facts.uncached, since_dispatch_s, facts.raw_ttft_s)
    accrue(memory, replica, at_s)
    owner = replicas_in(memory)[replica]
    owner.cost_rate -= facts.weight / facts.ttft_slo_s
    if sequence.output > 1:
        owner.cost_rate += facts.weight / ((sequence.output - 1) * facts.tpot_slo_s)
    if ttft_s > facts.ttft_slo_s:
        facts.charged = SLO_MISS_COST * facts.weight
        owner.cost += facts.charged
    outcome = outcomes_in(memory)[sequence.row]
    outcome.first_token_s = at_s


@inner
def moved(memory: int, slot: int, replica: int, at_s: float) -> None:
    """It goes on at another replica, after its first token; what it held at the old one is free."""
    facts = facts_in(memory)[slot]
    sequence = sequences_in(memory)[slot]
    old = facts.replica
    rate = facts.weight / ((sequence.output - 1) * facts.tpot_slo_s)
    accrue(memory, old, at_s)
    accrue(memory, replica, at_s)
    replicas_in(memory)[old].cost_rate -= rate
    replicas_in(memory)[old].inflight -= 1
    if replicas_in(memory)[old].inflight == 0:
        replicas_in(memory)[old].cost_rate = 0.0
    replicas_in(memory)[replica].cost_rate += rate
    replicas_in(memory)[replica].inflight += 1
    prompt = float(sequence.prompt)
    _on_abort(ledger_in(memory)[old], prompt, facts.uncached, facts.output_p50, 1.0, True)
    _on_dispatch(ledger_in(memory)[replica], prompt, 0.0, facts.output_p50)
    ledger_in(memory)[replica, _INFLIGHT_PREFILL] -= 1.0
    facts.replica = replica
    outcomes_in(memory)[sequence.row].replica = replica


@inner
def finished(memory: int, slot: int, at_s: float) -> None:
    """Its last token appeared. Frees the slot."""
    facts = facts_in(memory)[slot]
    sequence = sequences_in(memory)[slot]
    replica = facts.replica
    tpot_s = 0.0
    accrue(memory, replica, at_s)
    owner = replicas_in(memory)[replica]
    if sequence.output > 1:
        tpot_s = (at_s - facts.first_token_s) / (sequence.output - 1)
        owner.cost_rate -= facts.weight / ((sequence.output - 1) * facts.tpot_slo_s)
    if facts.charged == 0.0 and tpot_s > facts.tpot_slo_s:
        owner.cost += SLO_MISS_COST * facts.weight
    _on_finish(
        ledger_in(memory)[replica],
        float(sequence.prompt),
        facts.output_p50,
        float(sequence.output),
        at_s - facts.dispatched_s,
        tpot_s,
        facts.raw_tpot_s,
    )
    _leave(memory, slot, at_s, OK)


@inner
def aborted(memory: int, slot: int, at_s: float, status: int) -> None:
    """It failed, was cancelled or will not be waited for. Frees the slot."""
    facts = facts_in(memory)[slot]
    sequence = sequences_in(memory)[slot]
    replica = facts.replica
    accrue(memory, replica, at_s)
    owner = replicas_in(memory)[replica]
    had_first = sequence.produced > 0
    if had_first:
        spent = facts.weight * (facts.first_token_s - facts.arrival_s) / facts.ttft_slo_s
        rate = facts.weight / (max(sequence.output - 1, 1) * facts.tpot_slo_s)
        spent += facts.charged + rate * (at_s - facts.first_token_s)
    else:
        rate = facts.weight / facts.ttft_slo_s
        spent = rate * (at_s - facts.arrival_s)
    owner.cost_rate -= rate
    if status != CANCELLED:
        owner.cost += max(FAILURE_COST * facts.weight - spent, 0.0)
    _on_abort(
        ledger_in(memory)[replica],
        float(sequence.prompt),
        facts.uncached,
        facts.output_p50,
        float(sequence.produced),
        had_first,
    )
    _leave(memory, slot, at_s, status)


@inner
def refused(memory: int, row: int, replica: int, status: int) -> None:
    """No replica took it: it never was in flight."""
    cluster = common_in(memory)
    arrival_s = min(cluster.held_since_s, cluster.now_s)
    cluster.held_since_s = np.inf
    source = trace_in(memory)[row]
    if status == CANCELLED:
        cluster.cost += source.weight * (cluster.now_s - arrival_s) / source.ttft_slo_s
    else:
        cluster.cost += FAILURE_COST * source.weight
    outcome = outcomes_in(memory)[row]
    outcome.arrival_s = arrival_s
    outcome.replica = replica
    outcome.end_s = cluster.now_s
    outcome.status = status
    bear_children(memory, row, cluster.now_s)


@inner
def accrue(memory: int, replica: int, at_s: float) -> None:
    """Bring a replica's cost up to date."""
    owner = replicas_in(memory)[replica]
    owner.cost += owner.cost_rate * (at_s - owner.cost_at_s)
    owner.cost_at_s = at_s


@inner
def bear_children(memory: int, row: int, at_s: float) -> None:
    """The next turns of a request that ended, well or not, arrive a think time later."""
    cluster = common_in(memory)
    births = births_in(memory)
    child = trace_in(memory)[row].first_child
    while child != NONE:
        # Sift up in a binary heap by (time, row).
        i = cluster.born
        birth_s = at_s + trace_in(memory)[child].think_time_s
        while i > 0:
            parent = (i - 1) // 2
            above = births[parent]
            if above.at_s < birth_s or (above.at_s == birth_s and above.row < child):
                break
            births[i].at_s = above.at_s
            births[i].row = above.row
            i = parent
        births[i].at_s = birth_s
        births[i].row = child
        cluster.born += 1
        cluster.unborn -= 1
        child = trace_in(memory)[child].next_sibling


@inner
def _leave(memory: int, slot: int, at_s: float, status: int) -> None:
    facts = facts_in(memory)[slot]
    sequence = sequences_in(memory)[slot]
    owner = replicas_in(memory)[facts.replica]
    owner.inflight -= 1
    if owner.inflight == 0:
        owner.cost_rate = 0.0  # no rounding error outlives a quiet moment
    outcome = outcomes_in(memory)[sequence.row]
    outcome.end_s = at_s
    outcome.produced = sequence.produced
    outcome.cached_tokens = facts.cached_tokens
    outcome.preemptions = facts.preemptions
    outcome.status = status
    bear_children(memory, sequence.row, at_s)
    free_slot(memory, slot)
