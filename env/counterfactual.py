"""What each choice would have cost: the same future, played once for every candidate.

A request changes only the replica it is sent to, as long as the later choices stay as they were
recorded. So the cost of sending it to replica r is what r's own requests cost with it, less what they
cost without it: two runs of each replica, whatever the size of the pool. All numbers are exact replays
of the engine with common random numbers, not estimates; what they leave out is that later choices
would have been different. Arrivals are the recorded ones, for turns of sessions too: if the next turn
came the earlier the sooner an answer ends, whatever speeds answers up would bring in more work, and seem
dear. The later turns of the request that is asked about are left out of every future: where they go is
another choice, and the recorded one would always speak for the replica that was chosen.
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
from steersman.env.static_trace import as_recorded
from steersman.env.tables import (
    apart_from_prefixes,
    common_in,
    entries_in,
    replicas_in,
    table_in,
    trace_in,
)
from steersman.traces.errors import ConfigError

DRAIN_S = 3600.0
"""Patience with what is in flight at the end of the horizon."""


def added_costs(
    start: Memory,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    rows: NDArray[np.int64],
    *,
    wanted: NDArray[np.bool_] | None = None,
    arrival_s: NDArray[np.float64],
    parents: NDArray[np.int64],
    horizon_s: float,
) -> NDArray[np.float64]:
    """Replay a recorded run; at some of its requests, ask about every replica.

    Args:
        start: a cluster's memory before its first request; it is used up. It needs as many slots as
            were in flight at most, and some more: where they run out, the recorded future ends.
        choices: (rows of the trace,), the replica each request went to, or -1.
        output_p50: (rows of the trace,), predicted output tokens.
        rows: the requests to ask about, in the order of their arrivals.
        wanted: (len(rows), replicas), which replicas are asked about; None: all.
        arrival_s: (rows of the trace,), when each arrived in the recorded run; NaN: it did not.
        parents: (rows of the trace,), the turn before each, or -1; see `Trace.parent`.
        horizon_s: how long after such a request later arrivals are played. Then arrivals stop and all
            work is drained, so that nothing unfinished goes uncounted.

    Returns:
        (len(rows), replicas): what the request would have added to the cluster's cost on each replica;
        NaN where the replay did not reach it, or nobody wanted to know.

    Raises:
        ConfigError: replicas share GPUs, so that a request changes more than its own replica.
    """
    follow_record(start, arrival_s)
    scratch = start.copy()
    asked = np.zeros(len(choices), dtype=np.int64)
    asked[rows] = np.arange(1, len(rows) + 1)
    added = np.full((len(rows), len(start.replicas)), np.nan)
    if wanted is None:
        wanted = np.ones(added.shape, dtype=np.bool_)
    _sweep(
        start.buffer,
        start.address,
        scratch.buffer,
        scratch.address,
        np.ascontiguousarray(choices, dtype=np.int64),
        np.ascontiguousarray(output_p50, dtype=np.float64),
        asked,
        np.ascontiguousarray(parents, dtype=np.int64),
        horizon_s,
        np.ascontiguousarray(wanted),
        added,
    )
    return added


def follow_record(start: Memory, arrival_s: NDArray[np.float64]) -> None:
    """From now on every request arrives when it was recorded.

    Args:
        start: a cluster's memory before its first request.
        arrival_s: (rows of the trace,); NaN: it did not arrive.

    Raises:
        ConfigError: replicas share GPUs, so that a request changes more than its own replica.
    """
    if start.cluster["coupled"][0]:
        raise ConfigError(
            "counterfactuals ask about one replica at a time; 'sharing' makes replicas affect each other"
        )
    start.use_trace(as_recorded(start.trace, arrival_s))
    start.cluster["unborn"] = 0


@njit
def _sweep(
    base: NDArray[np.uint8],
    base_memory: int,
    scratch: NDArray[np.uint8],
    memory: int,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    asked: NDArray[np.int64],
    parents: NDArray[np.int64],
    horizon_s: float,
    wanted: NDArray[np.bool_],
    added: NDArray[np.float64],
) -> None:
    while common_in(base_memory).free_slots > 1:
        row = next_request(base_memory)
        if row == NONE:
            break
        if asked[row] > 0:
            k = asked[row] - 1
            ask(
                base,
                base_memory,
                scratch,
                memory,
                choices,
                output_p50,
                parents,
                horizon_s,
                wanted[k],
                added[k],
            )
        prompt = float(trace_in(base_memory)[row].input_tokens)
        dispatch(base_memory, choices[row], output_p50[row], prompt, 0.0, 0.0)


@inner
def ask(
    base: NDArray[np.uint8],
    base_memory: int,
    scratch: NDArray[np.uint8],
    memory: int,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    parents: NDArray[np.int64],
    horizon_s: float,
    wanted: NDArray[np.bool_],
    added: NDArray[np.float64],
) -> None:
    """Fill in the added cost of the pending request on every wanted replica, (replicas,)."""
    for replica in range(len(added)):
        _restore_prefixes(base_memory, memory, replica)
    row = common_in(base_memory).pending
    prompt = float(trace_in(base_memory)[row].input_tokens)
    for replica in range(len(added)):
        if not wanted[replica]:
            continue
        _restore(base, scratch, base_memory)
        _freeze_others(memory, replica)
        common_in(memory).pending = NONE
        _play(memory, replica, row, choices, output_p50, parents, horizon_s)
        without = replicas_in(memory)[replica].cost
        _restore_prefixes(base_memory, memory, replica)
        _restore(base, scratch, base_memory)
        _freeze_others(memory, replica)
        refused = -common_in(memory).cost
        dispatch(memory, replica, output_p50[row], prompt, 0.0, 0.0)
        refused += common_in(memory).cost
        _play(memory, replica, row, choices, output_p50, parents, horizon_s)
        added[replica] = replicas_in(memory)[replica].cost + refused - without
        _restore_prefixes(base_memory, memory, replica)


@inner
def _comes_after(row: int, earlier: int, parents: NDArray[np.int64]) -> bool:
    """Whether a row is a later turn of another's session."""
    at = parents[row]
    while at not in (NONE, earlier):
        at = parents[at]
    return bool(at == earlier)


@inner
def _restore(base: NDArray[np.uint8], scratch: NDArray[np.uint8], base_memory: int) -> None:
    """The cluster as it is, but for its prefix caches: they are most of it, and mostly not needed."""
    first, second = apart_from_prefixes(base_memory)
    scratch[:first] = base[:first]
    scratch[second:] = base[second:]


@inner
def _restore_prefixes(base_memory: int, memory: int, replica: int) -> None:
    """One replica's prefix cache as it is; before `_restore`, while the copy knows what it used."""
    used = max(replicas_in(base_memory)[replica].entries, replicas_in(memory)[replica].entries)
    kept, entries = entries_in(base_memory)[replica], entries_in(memory)[replica]
    for entry in range(used):
        entries[entry] = kept[entry]
    table_in(memory)[replica, :] = table_in(base_memory)[replica]


@inner
def _play(
    memory: int,
    only: int,
    asked: int,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    parents: NDArray[np.int64],
    horizon_s: float,
) -> None:
    """Play the recorded choices of one replica to the horizon, then drain.

    Without the later turns of the row that is asked about.
    """
    cluster = common_in(memory)
    end_s = cluster.now_s + horizon_s
    while cluster.free_slots > 0:
        row = next_unseen(memory)
        if row == NONE or cluster.now_s > end_s:
            break
        if choices[row] == only and not _comes_after(row, asked, parents):
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
