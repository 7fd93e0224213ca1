"""What the work in flight will still cost, in closed form, if everything stays as busy as it is.

A run that is cut off leaves requests unfinished, and a choice is often paid for after the cut: slow
decoding is spread over a whole answer. Draining would count it as if nobody else came; here every
replica keeps its load: whoever leaves is replaced by another of the same kind, so that an iteration
takes as long as now and as many prefills delay it.

Knows the truth (output lengths, the engines' queues): for references that are judged, never for a
policy that is served.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.env.account import SLO_MISS_COST
from steersman.env.engine import settle
from steersman.env.jit import njit
from steersman.env.layout import FREE, WAITING
from steersman.env.tables import common_in, facts_in, replicas_in, sequences_in

_COUNT, _CONTEXT, _PRODUCED, _PROMPT, _OUTPUT, _QUEUED, _WAITERS, _WIDTH = range(8)
"""Of a replica: requests, their context and tokens produced, prompts to compute and outputs in all,
prompt tokens not computed yet, requests not admitted yet."""


@njit
def unfinished_costs(memories: NDArray[np.int64], total: NDArray[np.float64]) -> None:
    """Add, for each cluster, the expected cost of what is in flight beyond what has accrued.

    Args:
        memories: (clusters,), addresses; all advanced to the same kind of moment (`next_request`).
        total: (clusters,), in units of J times requests, as `Cluster.cost_accrued`; added to.
    """
    for i in range(memories.shape[0]):
        settle(memories[i])
        total[i] += unfinished_cost(memories[i])


@njit
def unfinished_cost(memory: int) -> float:
    """See `unfinished_costs`; of a cluster whose batches are written down (`engine.settle`)."""
    replicas = replicas_in(memory)
    sequences = sequences_in(memory)
    facts = facts_in(memory)
    loads = np.zeros((replicas.shape[0], _WIDTH))
    for slot in range(sequences.shape[0]):
        if sequences[slot].state != FREE:
            _add(loads[facts[slot].replica], sequences[slot], facts[slot])
    now_s = common_in(memory).now_s
    cost = 0.0
    for slot in range(sequences.shape[0]):
        if sequences[slot].state != FREE:
            replica = facts[slot].replica
            cost += _request(sequences[slot], facts[slot], replicas[replica], loads[replica], now_s)
    return cost


@njit
def _add(load: NDArray[np.float64], sequence: Any, facts: Any) -> None:
    load[_COUNT] += 1.0
    load[_PROMPT] += facts.uncached
    load[_OUTPUT] += sequence.output
    load[_PRODUCED] += sequence.produced
    load[_CONTEXT] += sequence.prompt + sequence.produced
    if sequence.produced == 0:
        load[_QUEUED] += _to_compute(sequence, facts)
    if sequence.state == WAITING:
        load[_WAITERS] += 1.0


@njit
def _to_compute(sequence: Any, facts: Any) -> float:
    """Prompt tokens before the first token."""
    if sequence.state == WAITING:
        return float(facts.uncached)
    return float(max(sequence.prompt - sequence.computed, 0))


@njit
def _request(sequence: Any, facts: Any, replica: Any, load: NDArray[np.float64], now_s: float) -> float:
    """What one request will still cost."""
    running = min(load[_COUNT], float(replica.max_num_seqs))
    # Between the context of now and that of requests which are halfway, as they are on average.
    halfway = load[_CONTEXT] - load[_PRODUCED] + 0.5 * load[_OUTPUT]
    context = 0.5 * (load[_CONTEXT] + halfway) * running / load[_COUNT]
    decode_s = (
        replica.host_overhead_s
        + replica.decode_base_s
        + replica.decode_seq_s * running
        + replica.decode_context_s * context
    )
    # Of every replaced request the prompt is computed within others' iterations.
    stall_s = replica.prefill_token_s * load[_PROMPT] / load[_OUTPUT]
    token_s = (decode_s + stall_s * running / load[_COUNT]) * replica.factor
    cost = 0.0
    begun_s, missed = facts.first_token_s, facts.charged > 0.0
    left = sequence.output - sequence.produced
    if sequence.produced == 0:
        # On average half of what is queued comes before it, and what shares its iteration ends with it;
        # without room, somebody must leave first.
        tokens = 0.5 * (load[_QUEUED] + min(load[_QUEUED], float(replica.max_batched_tokens)))
        tokens = max(tokens, _to_compute(sequence, facts))
        chunks = max(tokens / replica.max_batched_tokens, 1.0)
        wait_s = (tokens * replica.prefill_token_s + chunks * decode_s) * replica.factor
        if sequence.state == WAITING and running < load[_COUNT]:
            leaves_s = load[_OUTPUT] / load[_COUNT] * token_s / running
            wait_s += 0.5 * (load[_WAITERS] + 1.0) * leaves_s
        begun_s = now_s + wait_s
        cost += facts.weight * wait_s / facts.ttft_slo_s
        missed = begun_s - facts.arrival_s > facts.ttft_slo_s
        if missed:
            cost += SLO_MISS_COST * facts.weight
        left -= 1
    if sequence.output > 1:
        span_s = left * token_s
        cost += facts.weight * span_s / ((sequence.output - 1) * facts.tpot_slo_s)
        tpot_s = (max(now_s - begun_s, 0.0) + span_s) / (sequence.output - 1)
        if not missed and tpot_s > facts.tpot_slo_s:
            cost += SLO_MISS_COST * facts.weight
    return float(cost)
