"""A request is sent to a replica."""

from __future__ import annotations

import numpy as np

from steersman.env.account import dispatched, refused
from steersman.env.agenda import enter_agenda
from steersman.env.jit import compiled, inner, njit
from steersman.env.layout import DECODE, FAILED, NONE, REJECTED, SERVING
from steersman.env.playing import advance, wake
from steersman.env.queues import push_back, take_slot
from steersman.env.tables import (
    common_in,
    facts_in,
    ledger_in,
    replicas_in,
    sequences_in,
    trace_in,
)
from steersman.predictors import ledger as plain_ledger

_on_lookup = compiled(plain_ledger).on_lookup


@njit
def dispatch(
    memory: int,
    replica: int,
    output_p50: float,
    uncached: float,
    raw_ttft_s: float,
    raw_tpot_s: float,
    match_fraction: float = 0.0,
) -> int:
    """Send the pending request to a replica; returns its slot, or NONE if it was not accepted.

    The caller has made sure that a slot is free. See `Cluster.dispatch` for what is refused.
    The numbers, as far as anybody looks at the ledger, are what the router predicted and believes.
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
    prompt = float(source.input_tokens)
    _on_lookup(ledger_in(memory)[replica], prompt, match_fraction * prompt)
    accept(memory, replica, slot)
    return slot


@inner
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
    facts.arrival_s = min(common_in(memory).held_since_s, now_s)
    facts.dispatched_s = now_s
    common_in(memory).held_since_s = np.inf
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
        facts.deadline_s = facts.arrival_s + source.patience_s
        owner.patience_end_s = min(owner.patience_end_s, facts.deadline_s)
    return slot


@inner
def accept(memory: int, replica: int, slot: int) -> None:
    """A replica gets a request; its iteration, if one is under way, goes on as it is."""
    now_s = common_in(memory).now_s
    owner = replicas_in(memory)[replica]
    if common_in(memory).agenda > 0:
        advance(memory, replica, now_s)
    dispatched(memory, slot, now_s)
    push_back(memory, replica, slot)
    owner.try_admission = 1
    wake(memory, replica, now_s)
    enter_agenda(memory, replica, now_s)
