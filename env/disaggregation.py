"""Prefill and decode on different replicas: a request moves with its KV cache after its first token.

A prefill replica computes the prompt and produces the first token. Then the KV cache of the prompt goes
to a decode replica, in `latency_s + prompt tokens * KV bytes per token / bandwidth`; its blocks stay in
use on the prefill replica until it is there. The decode replica is chosen on arrival, unless it was
named at dispatch: the one whose KV cache is used least. There the request queues like any other; it
needs room for what it brings, and computes its prompt anew only if it is preempted later.

Replicas affect each other, so such a cluster is played in order of time. All functions take the address
of a cluster's memory (`layout.py`).
"""

from __future__ import annotations

import numpy as np

from steersman.env.jit import inner
from steersman.env.kv import release
from steersman.env.layout import DECODE, MOVING, NONE, SERVING
from steersman.env.tables import common_in, facts_in, replicas_in, sequences_in


@inner
def depart(memory: int, replica: int, slot: int, at_s: float) -> None:
    """A prefill is done: send its KV cache off. The sequence is out of the batch already."""
    cluster = common_in(memory)
    sequence = sequences_in(memory)[slot]
    facts = facts_in(memory)[slot]
    sequence.state = MOVING
    sequence.scheduled = 0
    facts.arrives_s = at_s + cluster.transfer_latency_s + sequence.computed * cluster.transfer_token_s
    replicas_in(memory)[replica].moving += 1
    # A list in order of arrival.
    previous = NONE
    following = cluster.transfers
    while following != NONE and facts_in(memory)[following].arrives_s <= facts.arrives_s:
        previous = following
        following = sequences_in(memory)[following].next
    sequence.previous = previous
    sequence.next = following
    if previous == NONE:
        cluster.transfers = slot
    else:
        sequences_in(memory)[previous].next = slot
    if following != NONE:
        sequences_in(memory)[following].previous = slot


@inner
def next_arrival_s(memory: int) -> float:
    """When the next transfer ends."""
    slot = common_in(memory).transfers
    arrives_s: float = np.inf if slot == NONE else facts_in(memory)[slot].arrives_s
    return arrives_s


@inner
def leave(memory: int, slot: int) -> None:
    """A transfer ended, one way or another: free what the request held where it came from."""
    cluster = common_in(memory)
    sequence = sequences_in(memory)[slot]
    replica = facts_in(memory)[slot].replica
    if sequence.previous == NONE:
        cluster.transfers = sequence.next
    else:
        sequences_in(memory)[sequence.previous].next = sequence.next
    if sequence.next != NONE:
        sequences_in(memory)[sequence.next].previous = sequence.previous
    replicas_in(memory)[replica].moving -= 1
    release(memory, replica, slot)


@inner
def destination(memory: int, slot: int) -> int:
    """The decode replica that was named or whose KV cache is used least; NONE if none can take it."""
    sequence = sequences_in(memory)[slot]
    tokens = sequence.prompt + sequence.output
    named = facts_in(memory)[slot].target
    if named != NONE and _takes(memory, named, tokens):
        return int(named)
    best, least = NONE, np.inf
    for replica in range(replicas_in(memory).shape[0]):
        owner = replicas_in(memory)[replica]
        use = owner.held_blocks / owner.kv_blocks
        if use < least and _takes(memory, replica, tokens):
            best, least = replica, use
    return best


@inner
def _takes(memory: int, replica: int, tokens: int) -> bool:
    owner = replicas_in(memory)[replica]
    up = owner.role == DECODE and owner.healthy == 1 and owner.phase == SERVING
    return bool(up and tokens <= owner.token_limit)
