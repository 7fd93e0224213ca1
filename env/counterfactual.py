"""What each choice would have cost: the same future, played once for every candidate.

A request changes only the replica it is sent to, as long as the later choices stay as they were
recorded. So the cost of sending it to replica r is what r's own requests cost with it, less what they
cost without it: two runs of each replica, whatever the size of the pool. All numbers are exact replays
of the engine with common random numbers, not estimates; what they leave out is that later choices
would have been different.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.agenda import EVENTS, SCRAPES, set_due
from steersman.env.dispatching import dispatch
from steersman.env.drains import drain
from steersman.env.engine import next_request, next_unseen
from steersman.env.jit import inner, njit
from steersman.env.layout import NONE
from steersman.env.memory import Memory
from steersman.env.tables import common_in, replicas_in, trace_in
from steersman.traces.errors import ConfigError

DRAIN_S = 3600.0
"""Patience with what is in flight at the end of the horizon."""


def added_costs(
    start: Memory,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    rows: NDArray[np.int64],
    *,
    horizon_s: float,
) -> NDArray[np.float64]:
    """Replay a recorded run; at some of its requests, ask about every replica.

    Args:
        start: a cluster's memory before its first request; it is used up. It needs as many slots as
            were in flight at most, and some more: where they run out, the recorded future ends.
        choices: (rows of the trace,), the replica each request went to, or -1.
        output_p50: (rows of the trace,), predicted output tokens.
        rows: the requests to ask about, in the order of their arrivals.
        horizon_s: how long after such a request later arrivals are played. Then arrivals stop and all
            work is drained, so that nothing unfinished goes uncounted.

    Returns:
        (len(rows), replicas): what the request would have added to the cluster's cost on each replica;
        NaN where the replay did not reach it.

    Raises:
        ConfigError: replicas share GPUs, so that a request changes more than its own replica.

    Sessions whose next turns wait for answers follow the recorded choices too, but a turn that depends
    on another replica's answer does not arrive in the runs of a single replica.
    """
    if start.cluster["coupled"][0]:
        raise ConfigError(
            "counterfactuals ask about one replica at a time; 'sharing' makes replicas affect each other"
        )
    scratch = start.copy()
    asked = np.zeros(len(choices), dtype=np.int64)
    asked[rows] = np.arange(1, len(rows) + 1)
    added = np.full((len(rows), len(start.replicas)), np.nan)
    _sweep(
        start.buffer,
        start.address,
        scratch.buffer,
        scratch.address,
        np.ascontiguousarray(choices, dtype=np.int64),
        np.ascontiguousarray(output_p50, dtype=np.float64),
        asked,
        horizon_s,
        added,
    )
    return added


@njit
def _sweep(
    base: NDArray[np.uint8],
    base_memory: int,
    scratch: NDArray[np.uint8],
    memory: int,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    asked: NDArray[np.int64],
    horizon_s: float,
    added: NDArray[np.float64],
) -> None:
    while common_in(base_memory).free_slots > 1:
        row = next_request(base_memory)
        if row == NONE:
            break
        if asked[row] > 0:
            _ask(base, scratch, memory, choices, output_p50, horizon_s, added[asked[row] - 1])
        prompt = float(trace_in(base_memory)[row].input_tokens)
        dispatch(base_memory, choices[row], output_p50[row], prompt, 0.0, 0.0)


@inner
def _ask(
    base: NDArray[np.uint8],
    scratch: NDArray[np.uint8],
    memory: int,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    horizon_s: float,
    added: NDArray[np.float64],
) -> None:
    """Fill in the added cost of the pending request on every replica, (replicas,)."""
    scratch[:] = base
    cluster = common_in(memory)
    replicas = replicas_in(memory)
    row = cluster.pending
    cluster.pending = NONE
    _play(memory, NONE, choices, output_p50, horizon_s)
    for replica in range(len(added)):
        added[replica] = -replicas[replica].cost
    for replica in range(len(added)):
        scratch[:] = base
        _freeze_others(memory, replica)
        refused = -cluster.cost
        prompt = float(trace_in(memory)[row].input_tokens)
        dispatch(memory, replica, output_p50[row], prompt, 0.0, 0.0)
        refused += cluster.cost
        _play(memory, replica, choices, output_p50, horizon_s)
        added[replica] += replicas[replica].cost + refused


@inner
def _play(
    memory: int,
    only: int,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    horizon_s: float,
) -> None:
    """Play recorded choices (of one replica, or NONE for all) to the horizon, then drain."""
    cluster = common_in(memory)
    end_s = cluster.now_s + horizon_s
    while cluster.free_slots > 0:
        row = next_unseen(memory)
        if row == NONE or cluster.now_s > end_s:
            break
        if only in (NONE, choices[row]):
            prompt = float(trace_in(memory)[row].input_tokens)
            dispatch(memory, choices[row], output_p50[row], prompt, 0.0, 0.0)
    cluster.pending = NONE
    drain(memory, DRAIN_S)


@inner
def _freeze_others(memory: int, kept: int) -> None:
    """Empty all other replicas: nothing happens there any more."""
    replicas = replicas_in(memory)
    for replica in range(replicas.shape[0]):
        if replica != kept:
            replicas[replica].iteration_end_s = np.inf
            replicas[replica].patience_end_s = np.inf
            replicas[replica].next_scrape_s = np.inf
            replicas[replica].running = 0
            replicas[replica].waiting = 0
            replicas[replica].in_flight = 0
            replicas[replica].leaping = 0
            replicas[replica].decoding = 0
            set_due(memory, EVENTS, replica, np.inf)
            set_due(memory, SCRAPES, replica, np.inf)
            replicas[replica].cost_rate = 0.0
