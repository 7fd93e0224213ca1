"""The choices of one who knew all that was to come: a recorded run, improved one choice after the other.

At every request of a stretch of time, in order, all replicas are asked what it would have cost there
(`counterfactual.py`: exact replays, the later choices as they are now), and it goes to the cheapest. So
each choice knows the requests to come, their true lengths and where they will go, and the next one knows
of its change: coordinate descent on the cost of all requests together. Where arrivals do not depend on
answers and the horizon holds all that a choice changes, no step makes that cost worse.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.counterfactual import ask, follow_record
from steersman.env.dispatching import dispatch
from steersman.env.engine import next_request
from steersman.env.jit import njit
from steersman.env.layout import NONE
from steersman.env.memory import Memory
from steersman.env.tables import common_in, trace_in


def improved_choices(
    start: Memory,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    *,
    arrival_s: NDArray[np.float64],
    parents: NDArray[np.int64],
    from_s: float,
    until_s: float,
    horizon_s: float,
) -> NDArray[np.int64]:
    """One pass over a recorded run.

    Args:
        start: a cluster's memory before its first request; it is used up. It needs as many slots as
            were in flight at most, and some more: where they run out, the choices stay as they are.
        choices: (rows of the trace,), the replica each request went to, or -1.
        output_p50: (rows of the trace,), predicted output tokens.
        arrival_s: (rows of the trace,), when each arrived in the recorded run; NaN: it did not.
        parents: (rows of the trace,), the turn before each, or -1; see `Trace.parent`.
        from_s, until_s: requests that arrive from the one to the other are chosen anew.
        horizon_s: how long after such a request later arrivals are played, before all work is drained.

    Returns:
        (rows of the trace,): better choices.

    Raises:
        ConfigError: replicas share GPUs, so that a request changes more than its own replica.
    """
    follow_record(start, arrival_s)
    scratch = start.copy()
    better = np.array(choices, dtype=np.int64)
    replicas = len(start.replicas)
    _descend(
        start.buffer,
        start.address,
        scratch.buffer,
        scratch.address,
        better,
        np.ascontiguousarray(output_p50, dtype=np.float64),
        np.ascontiguousarray(parents, dtype=np.int64),
        from_s,
        until_s,
        horizon_s,
        np.ones(replicas, dtype=np.bool_),
        np.empty(replicas),
    )
    return better


@njit
def _descend(
    base: NDArray[np.uint8],
    base_memory: int,
    scratch: NDArray[np.uint8],
    memory: int,
    choices: NDArray[np.int64],
    output_p50: NDArray[np.float64],
    parents: NDArray[np.int64],
    from_s: float,
    until_s: float,
    horizon_s: float,
    wanted: NDArray[np.bool_],
    added: NDArray[np.float64],
) -> None:
    common = common_in(base_memory)
    while common.free_slots > 1:
        row = next_request(base_memory)
        if row == NONE or common.now_s >= until_s:
            break
        if common.now_s >= from_s:
            ask(
                base,
                base_memory,
                scratch,
                memory,
                choices,
                output_p50,
                parents,
                horizon_s,
                wanted,
                added,
            )
            best = choices[row]
            for replica in range(len(added)):
                if best == NONE or added[replica] < added[best]:
                    best = replica
            choices[row] = best
        prompt = float(trace_in(base_memory)[row].input_tokens)
        dispatch(base_memory, choices[row], output_p50[row], prompt, 0.0, 0.0)
