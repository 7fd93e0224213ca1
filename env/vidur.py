"""Vidur's rules, to compare against Vidur: https://github.com/microsoft/vidur (MIT licence).

The cluster model follows real engines. Vidur differs from them in ways that move its results, and all
of these live here and nowhere else:

- `vllm`: an iteration is either whole prompts or decodes, and prompts go first. A prompt joins while
  prompts times the longest of them stays within `max_tokens` (padding), while the replica holds fewer
  than `batch_cap` requests, running or not, and while the batch holds less than `batch_cap / stages`.
- `sarathi`: decodes first, then chunks, within `chunk_tokens` tokens.
- The first token appears at the end of the prompt.
- Dense layers see the tokens of a batch rounded up to 8, decoding attention sees the number of
  sequences times their mean context rounded up to 64, and attention over more than one sequence of a
  kind costs a tenth more.
- Up to `stages` batches are in flight; each stage takes the same time.
- `lor` sends a request to the replica with the fewest waiting requests, `lorfixed` to the one with the
  fewest waiting or running; ties go to the first.

KV memory is left out: no request of the reference runs was restarted.

Every time is kept together with the features it is made of (see `Played`), so that a cost can be fitted.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.env.jit import njit
from steersman.env.vidur_batches import FEATURES, chunks, features_of, whole_prompts

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VLLM, SARATHI = 0, 1
ROUND_ROBIN, LOR, LOR_FIXED = 0, 1, 2
SCHEDULERS = {"vllm": VLLM, "sarathi": SARATHI}
ROUTERS = {"round_robin": ROUND_ROBIN, "lor": LOR, "lorfixed": LOR_FIXED}

_WIDTH = len(FEATURES)


@dataclass(frozen=True, slots=True)
class Played:
    """A schedule, and what its times are made of; n requests.

    `features[i, 0] @ cost` is the time from arrival to first token of request i under this very
    schedule, `features[i, 1] @ cost` the time to its end.
    """

    ttft_s: Floats
    """(n,)"""
    e2e_s: Floats
    """(n,)"""
    features: Floats
    """(n, 2, features)"""


def play(
    arrival_s: Floats,
    prompt: Ints,
    output: Ints,
    cost: Floats,
    *,
    scheduler: str,
    router: str,
    replicas: int = 4,
    stages: int = 1,
    batch_cap: int = 128,
    max_tokens: int = 4096,
    chunk_tokens: int = 512,
) -> Played:
    """Play requests, sorted by arrival, under Vidur's rules; `cost` has one number per feature."""
    state = _empty(len(arrival_s), replicas, stages, batch_cap)
    _play(
        np.ascontiguousarray(arrival_s, dtype=np.float64),
        np.ascontiguousarray(prompt, dtype=np.int64),
        np.ascontiguousarray(output, dtype=np.int64),
        np.ascontiguousarray(cost, dtype=np.float64),
        SCHEDULERS[scheduler],
        ROUTERS[router],
        batch_cap,
        max_tokens if scheduler == "vllm" else chunk_tokens,
        state,
    )
    return Played(state.first_s - arrival_s, state.end_s - arrival_s, state.features)


class _State(NamedTuple):
    """Everything that changes. n requests, r replicas, s stages, c requests at once, f features."""

    first_s: Floats
    """(n,), as the next two."""
    end_s: Floats
    features: Floats
    """(n, 2, f)"""
    at_arrival: Floats
    """(n, f): the replica's clock in features when the request came."""
    done: Ints
    """(n,): tokens computed; a finished prompt counts its first token."""
    taken: Ints
    """(n,): tokens in the batch that is in flight."""
    queue: Ints
    """(r, n), of which `head` to `tail` wait."""
    head: Ints
    tail: Ints
    idle: Ints
    """(r, c): started, in no batch; in order of arrival."""
    idles: Ints
    held: Ints
    batch: Ints
    """(r, s, c): in flight, the first to end first."""
    size: Ints
    flying: Ints
    leaves_s: Floats
    """(r, s): when each batch in flight ends; infinite where there is none."""
    leaves: Floats
    """(r, s, f): the clock in features then."""
    free_s: Floats
    """(r, s): when each stage has done what was given to it."""
    free: Floats
    clock_s: Floats
    """(r,): the last event of a replica, and the clock in features then."""
    clock: Floats


def _empty(n: int, replicas: int, stages: int, cap: int) -> _State:
    def ints(*shape: int) -> Ints:
        return np.zeros(shape, dtype=np.int64)

    unknown = np.full(n, np.nan)
    return _State(
        first_s=unknown,
        end_s=unknown.copy(),
        features=np.zeros((n, 2, _WIDTH)),
        at_arrival=np.zeros((n, _WIDTH)),
        done=ints(n),
        taken=ints(n),
        queue=ints(replicas, n),
        head=ints(replicas),
        tail=ints(replicas),
        idle=ints(replicas, cap),
        idles=ints(replicas),
        held=ints(replicas),
        batch=ints(replicas, stages, cap),
        size=ints(replicas, stages),
        flying=ints(replicas),
        leaves_s=np.full((replicas, stages), np.inf),
        leaves=np.zeros((replicas, stages, _WIDTH)),
        free_s=np.zeros((replicas, stages)),
        free=np.zeros((replicas, stages, _WIDTH)),
        clock_s=np.zeros(replicas),
        clock=np.zeros((replicas, _WIDTH)),
    )


@njit
def _play(
    arrival_s: Floats,
    prompt: Ints,
    output: Ints,
    cost: Floats,
    scheduler: int,
    router: int,
    batch_cap: int,
    most_tokens: int,
    state: _State,
) -> None:
    arrived = 0
    while True:
        r = int(np.argmin(state.leaves_s[:, 0]))
        now_s = state.leaves_s[r, 0]
        if arrived < len(arrival_s) and arrival_s[arrived] <= now_s:
            now_s = arrival_s[arrived]
            r = _route(router, arrived, state.tail - state.head, state.held)
            _arrive(state, r, arrived, now_s)
            arrived += 1
        elif now_s == np.inf:
            return
        else:
            _end_batch(state, r, prompt, output)
        while state.flying[r] < state.batch.shape[1]:
            if not _start_batch(state, r, now_s, prompt, cost, scheduler, batch_cap, most_tokens):
                break


@njit
def _arrive(state: _State, r: int, i: int, now_s: float) -> None:
    """Put request i into a replica's queue; amid a batch, its share of the batch is behind us."""
    next_s = state.leaves_s[r, 0]
    if state.flying[r] > 0 and next_s > state.clock_s[r]:
        share = (now_s - state.clock_s[r]) / (next_s - state.clock_s[r])
        state.clock[r] += share * (state.leaves[r, 0] - state.clock[r])
    state.clock_s[r] = now_s
    state.at_arrival[i] = state.clock[r]
    state.queue[r, state.tail[r]] = i
    state.tail[r] += 1


@njit
def _end_batch(state: _State, r: int, prompt: Ints, output: Ints) -> None:
    """The first batch in flight is done."""
    now_s = state.leaves_s[r, 0]
    state.clock_s[r] = now_s
    state.clock[r] = state.leaves[r, 0]
    for i in state.batch[r, 0, : state.size[r, 0]]:
        state.done[i] += state.taken[i]
        if state.done[i] == prompt[i]:
            state.done[i] += 1
            state.first_s[i] = now_s
            state.features[i, 0] = state.clock[r] - state.at_arrival[i]
        if state.done[i] >= prompt[i] + output[i]:
            state.end_s[i] = now_s
            state.features[i, 1] = state.clock[r] - state.at_arrival[i]
            state.held[r] -= 1
        else:
            _insert(state.idle[r], state.idles[r], i)
            state.idles[r] += 1
    state.flying[r] -= 1
    for k in range(state.flying[r]):
        state.batch[r, k] = state.batch[r, k + 1]
        state.size[r, k] = state.size[r, k + 1]
        state.leaves_s[r, k] = state.leaves_s[r, k + 1]
        state.leaves[r, k] = state.leaves[r, k + 1]
    state.leaves_s[r, state.flying[r]] = np.inf


@njit
def _start_batch(
    state: _State,
    r: int,
    now_s: float,
    prompt: Ints,
    cost: Floats,
    scheduler: int,
    batch_cap: int,
    most_tokens: int,
) -> bool:
    """Form a batch and send it through the stages; False if there is nothing to do."""
    stages = state.batch.shape[1]
    k = state.flying[r]
    room = batch_cap // stages
    waiting = state.queue[r, state.head[r] : state.tail[r]]
    batch, idle = state.batch[r, k], state.idle[r]
    free = batch_cap - state.held[r]
    if scheduler == VLLM:
        most = min(room, free)
        count, begun, used = whole_prompts(
            batch, waiting, prompt, state.taken, most_tokens, most, idle, state.idles[r], room
        )
    else:
        count, begun, used = chunks(
            batch,
            waiting,
            prompt,
            state.done,
            state.taken,
            most_tokens,
            free,
            idle,
            state.idles[r],
            room,
        )
    if count == 0:
        return False
    state.head[r] += begun
    state.held[r] += begun
    state.idles[r] -= used
    state.size[r, k] = count
    state.flying[r] += 1
    features = features_of(batch[:count], prompt, state.done, state.taken)
    stage_s = float((features * cost).sum())
    at_s = now_s
    reached = state.clock[r].copy()
    for stage in range(stages):
        if state.free_s[r, stage] > at_s:
            at_s = state.free_s[r, stage]
            reached[:] = state.free[r, stage]
        at_s += stage_s
        reached += features
        state.free_s[r, stage] = at_s
        state.free[r, stage] = reached
    state.leaves_s[r, k] = at_s
    state.leaves[r, k] = reached
    return True


@njit
def _route(router: int, i: int, waiting: Ints, held: Ints) -> int:
    if router == ROUND_ROBIN:
        return i % len(waiting)
    best = 0
    for r in range(1, len(waiting)):
        load = waiting[r] + (held[r] if router == LOR_FIXED else 0)
        least = waiting[best] + (held[best] if router == LOR_FIXED else 0)
        if load < least:
            best = r
    return best


@njit
def _insert(idle: Ints, count: int, i: int) -> None:
    """Keep the order of arrival."""
    k = count
    while k > 0 and idle[k - 1] > i:
        idle[k] = idle[k - 1]
        k -= 1
    idle[k] = i
