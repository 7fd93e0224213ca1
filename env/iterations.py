"""What each request's times are made of: the features of the iterations it lived through.

`HardwareProfile`'s formula is linear in its numbers once it is known which side of its maximum holds.
Here the engine itself plays a trace on one replica, and beside it a clock runs in features instead of
seconds; a request's TTFT and end-to-end time are differences of that clock times the profile's numbers.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.dispatching import dispatch
from steersman.env.jit import inner, njit
from steersman.env.layout import NONE
from steersman.env.scheduler import begin_iteration, end_iteration
from steersman.env.tables import common_in, outcomes_in, replicas_in, run_in, sequences_in, trace_in
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import HardwareProfile
from steersman.traces.trace import Trace

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FEATURES = (
    "read_weights",  # iterations in which reading the weights takes longest
    "prefill",  # iterations in which prefilling does
    "decode_sequences",
    "decode_context",
    "prefill_tokens",  # of iterations in which prefilling takes longest, as is the next
    "prefill_squared",
)
_WIDTH = len(FEATURES)


@dataclass(frozen=True, slots=True)
class Iterations:
    """A trace played on one replica; n requests. See `Played` in `vidur.py` for the features."""

    ttft_s: Floats
    """(n,), NaN where it was refused."""
    e2e_s: Floats
    features: Floats
    """(n, 2, features)"""


def cost_of(profile: HardwareProfile) -> Floats:
    """The profile's numbers, one for each feature."""
    return np.array(
        [
            profile.host_overhead_s + profile.decode_base_s,
            profile.host_overhead_s + profile.prefill_base_s,
            profile.decode_seq_s,
            profile.decode_context_s,
            profile.prefill_token_s,
            profile.prefill_token2_s,
        ]
    )


def with_cost(profile: HardwareProfile, cost: Floats) -> HardwareProfile:
    """The profile with other numbers.

    Host overhead cannot be told from the rest of an iteration; as much of it as fits is kept.
    """
    read_s, prefill_s, sequence_s, context_s, token_s, token2_s = (float(c) for c in cost)
    host_s = min(profile.host_overhead_s, prefill_s, 0.9 * read_s)
    return replace(
        profile,
        host_overhead_s=host_s,
        decode_base_s=read_s - host_s,
        prefill_base_s=prefill_s - host_s,
        decode_seq_s=sequence_s,
        decode_context_s=context_s,
        prefill_token_s=token_s,
        prefill_token2_s=token2_s,
    )


def play_iterations(profile: HardwareProfile, trace: Trace, *, prefix_cache: bool = True) -> Iterations:
    """Play a trace on one replica. Arrivals are the trace's own, parents or not."""
    alone = replace(trace, parent=np.full(len(trace), NONE, dtype=trace.parent.dtype))
    replicas = [ReplicaSpec("replica", profile)]
    cluster = Cluster(replicas, alone, prefix_cache=prefix_cache, stepped=True)
    cluster.memory.grow(len(trace) + 1)
    features = np.zeros((len(trace), 2, _WIDTH))
    _play(cluster.memory.address, cluster.table.output_p50, features)
    outcomes = cluster.memory.outcomes
    return Iterations(
        outcomes["first_token_s"] - alone.arrival_s, outcomes["end_s"] - alone.arrival_s, features
    )


@njit
def _play(memory: int, output_p50: Floats, features: Floats) -> None:
    """All of the trace on replica 0, without scrapes."""
    rows = trace_in(memory)
    owner = replicas_in(memory)[0]
    cluster = common_in(memory)
    clock = np.zeros(_WIDTH)
    running = np.zeros(_WIDTH)  # the iteration that runs
    started_s = 0.0
    at_arrival = np.zeros((len(rows), _WIDTH))
    for row in range(len(rows) + 1):
        arrival_s = rows[row].arrival_s if row < len(rows) else np.inf
        while owner.iteration_end_s <= arrival_s and owner.iteration_end_s < np.inf:
            started_s = owner.iteration_end_s
            clock += running
            _end(memory, started_s, clock, at_arrival, features)
            begin_iteration(memory, 0, started_s)
            _count(memory, running)
        if row == len(rows):
            break
        at_arrival[row] = clock
        idle = owner.iteration_end_s == np.inf
        if not idle:
            share = (arrival_s - started_s) / (owner.iteration_end_s - started_s)
            at_arrival[row] += share * running
        cluster.now_s = arrival_s
        cluster.pending = row
        dispatch(memory, 0, output_p50[row], 0.0, 0.0, 0.0)
        if idle:
            started_s = arrival_s
            _count(memory, running)


@inner
def _end(memory: int, at_s: float, clock: Floats, at_arrival: Floats, features: Floats) -> None:
    """End the iteration; who got a first or a last token learns what the way there was made of."""
    sequences = sequences_in(memory)
    count = replicas_in(memory)[0].running
    batch = np.empty(count, np.int64)
    for i in range(count):
        batch[i] = sequences[run_in(memory)[0, i]].row
    end_iteration(memory, 0, at_s)
    for row in batch:
        outcome = outcomes_in(memory)[row]
        if outcome.first_token_s == at_s:
            features[row, 0] = clock - at_arrival[row]
        if outcome.end_s == at_s:
            features[row, 1] = clock - at_arrival[row]


@inner
def _count(memory: int, features: Floats) -> None:
    """The features of the iteration that has just begun; zero if the replica is idle."""
    features[:] = 0.0
    owner = replicas_in(memory)[0]
    if owner.iteration_end_s == np.inf:
        return
    tokens = 0
    squared = 0.0
    for i in range(owner.running):
        sequence = sequences_in(memory)[run_in(memory)[0, i]]
        if sequence.produced > 0 and sequence.scheduled == 1:
            features[2] += 1.0
            features[3] += sequence.computed + 1.0
        elif sequence.scheduled > 0:
            tokens += sequence.scheduled
            squared += sequence.scheduled * (sequence.scheduled + 2.0 * sequence.computed)
    prefill_s = owner.prefill_base_s + owner.prefill_token_s * tokens + owner.prefill_token2_s * squared
    if tokens > 0 and prefill_s > owner.decode_base_s:
        features[1] = 1.0
        features[4] = tokens
        features[5] = squared
    else:
        features[0] = 1.0
