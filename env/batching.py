"""Iterations that do not mix prompts and decodes: prefill-first and static batching.

- **Prefill-first** (vLLM v0): while any waiting request can be admitted, an iteration is whole prompts,
  as many as the token budget holds, and what decodes stands still. A prompt longer than the budget
  goes alone.
- **Static**: requests are admitted only when the batch is empty, as many whole prompts as slots and KV
  memory hold; what has ended leaves its slot empty until all have. This is what continuous batching
  replaced, and is here to show what it buys.

In both, a request is admitted in order and nobody overtakes, memory is handed out and taken back as in
`scheduler.py`, and a prompt counts in full against the budget, even where a part of it is cached.
"""

from __future__ import annotations

from steersman.env.jit import inner
from steersman.env.kv import attach
from steersman.env.layout import NONE, RUNNING
from steersman.env.queues import first_waiting, remove_waiting
from steersman.env.tables import facts_in, replicas_in, run_in, sequences_in
from steersman.traces.schema import Batching

CHUNKED = tuple(Batching).index(Batching.CHUNKED)
STATIC = tuple(Batching).index(Batching.STATIC)


@inner
def start_prompts(memory: int, replica: int) -> bool:
    """Admit whole prompts and let all else stand still; False, and no change, if none is admitted."""
    owner = replicas_in(memory)[replica]
    sequences = sequences_in(memory)
    before = owner.running
    if owner.batching == STATIC and before > 0:
        return False
    budget = owner.max_batched_tokens
    while owner.try_admission == 1 and owner.waiting > 0 and owner.running < owner.max_num_seqs:
        slot = first_waiting(memory, replica)
        if slot == NONE:
            break
        sequence = sequences[slot]
        tokens = sequence.prompt + sequence.produced
        if owner.batching != STATIC and tokens > budget and owner.running > before:
            break
        chunk = attach(memory, replica, slot, tokens)
        if chunk == 0:
            owner.try_admission = 0
            break
        remove_waiting(memory, replica, slot)
        sequence.state = RUNNING
        sequence.scheduled = chunk
        run_in(memory)[replica, owner.running] = slot
        owner.running += 1
        budget -= tokens
        count_lookup(memory, replica, slot)
    if owner.running == before:
        return False
    for i in range(before):
        sequences[run_in(memory)[replica, i]].scheduled = 0
    return True


@inner
def count_lookup(memory: int, replica: int, slot: int) -> None:
    """Prefix-cache statistics, once per request, as vLLM counts them."""
    facts = facts_in(memory)[slot]
    if facts.looked_up == 0:
        sequence = sequences_in(memory)[slot]
        facts.looked_up = 1
        facts.cached_tokens = sequence.computed
        replicas_in(memory)[replica].prefix_queries += sequence.prompt
        replicas_in(memory)[replica].prefix_hits += sequence.computed
