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

import numpy as np
from numpy.typing import NDArray

from steersman.env.jit import njit

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

VLLM, SARATHI = 0, 1
ROUND_ROBIN, LOR, LOR_FIXED = 0, 1, 2
SCHEDULERS = {"vllm": VLLM, "sarathi": SARATHI}
ROUTERS = {"round_robin": ROUND_ROBIN, "lor": LOR, "lorfixed": LOR_FIXED}

TILE_TOKENS = 128
"""Matrix products work on tiles of so many tokens; the first tile hides behind reading the weights."""
FEATURES = (
    "batch",
    "tokens",
    "tokens_over_tile",
    "tiled_tokens_over_tile",
    "decode_context",
    "prefill_squared",
)
"""What a stage's time for a batch is linear in."""
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
    first_s, end_s, features = _play(
        np.ascontiguousarray(arrival_s, dtype=np.float64),
        np.ascontiguousarray(prompt, dtype=np.int64),
        np.ascontiguousarray(output, dtype=np.int64),
        np.ascontiguousarray(cost, dtype=np.float64),
        SCHEDULERS[scheduler],
        ROUTERS[router],
        replicas,
        stages,
        batch_cap,
        max_tokens if scheduler == "vllm" else chunk_tokens,
    )
    return Played(first_s - arrival_s, end_s - arrival_s, features)


@njit
def _play(
    arrival_s: Floats,
    prompt: Ints,
    output: Ints,
    cost: Floats,
    scheduler: int,
    router: int,
    replicas: int,
    stages: int,
    batch_cap: int,
    most_tokens: int,
) -> tuple[Floats, Floats, Floats]:
    n = len(arrival_s)
    first_s = np.full(n, np.nan)
    end_s = np.full(n, np.nan)
    features = np.zeros((n, 2, _WIDTH))
    at_arrival = np.zeros((n, _WIDTH))
    done = np.zeros(n, np.int64)  # tokens computed; a finished prompt counts its first token
    taken = np.zeros(n, np.int64)  # tokens in the batch that is in flight
    queue = np.zeros((replicas, n), np.int64)
    head = np.zeros(replicas, np.int64)
    tail = np.zeros(replicas, np.int64)
    idle = np.zeros((replicas, batch_cap), np.int64)  # started, in no batch; in order of arrival
    idles = np.zeros(replicas, np.int64)
    held = np.zeros(replicas, np.int64)
    batch = np.zeros((replicas, stages, batch_cap), np.int64)
    size = np.zeros((replicas, stages), np.int64)
    flying = np.zeros(replicas, np.int64)
    leaves_s = np.full((replicas, stages), np.inf)
    leaves = np.zeros((replicas, stages, _WIDTH))
    free_s = np.zeros((replicas, stages))  # when each stage has done what was given to it
    free = np.zeros((replicas, stages, _WIDTH))
    clock_s = np.zeros(replicas)  # the last event of a replica, and the features up to it
    clock = np.zeros((replicas, _WIDTH))
    arrived = 0
    while True:
        r = 0
        for other in range(1, replicas):
            if leaves_s[other, 0] < leaves_s[r, 0]:
                r = other
        now_s = leaves_s[r, 0]
        if arrived < n and arrival_s[arrived] <= now_s:
            i = arrived
            arrived += 1
            now_s = arrival_s[i]
            r = _route(router, i, tail - head, held)
            if flying[r] > 0 and leaves_s[r, 0] > clock_s[r]:
                share = (now_s - clock_s[r]) / (leaves_s[r, 0] - clock_s[r])
                clock[r] += share * (leaves[r, 0] - clock[r])
            clock_s[r] = now_s
            at_arrival[i] = clock[r]
            queue[r, tail[r]] = i
            tail[r] += 1
        elif now_s == np.inf:
            break
        else:
            clock_s[r] = now_s
            clock[r] = leaves[r, 0]
            for k in range(size[r, 0]):
                i = batch[r, 0, k]
                done[i] += taken[i]
                if done[i] == prompt[i]:
                    done[i] += 1
                    first_s[i] = now_s
                    features[i, 0] = clock[r] - at_arrival[i]
                if done[i] >= prompt[i] + output[i]:
                    end_s[i] = now_s
                    features[i, 1] = clock[r] - at_arrival[i]
                    held[r] -= 1
                else:
                    _insert(idle[r], idles[r], i)
                    idles[r] += 1
            flying[r] -= 1
            for k in range(flying[r]):
                batch[r, k] = batch[r, k + 1]
                size[r, k] = size[r, k + 1]
                leaves_s[r, k] = leaves_s[r, k + 1]
                leaves[r, k] = leaves[r, k + 1]
            leaves_s[r, flying[r]] = np.inf
        while flying[r] < stages:
            k = flying[r]
            room = batch_cap // stages
            if scheduler == VLLM:
                count, begun, used = _whole_prompts(
                    batch[r, k],
                    queue[r, head[r] : tail[r]],
                    prompt,
                    taken,
                    most_tokens,
                    min(room, batch_cap - held[r]),
                    idle[r],
                    idles[r],
                    room,
                )
            else:
                count, begun, used = _chunks(
                    batch[r, k],
                    queue[r, head[r] : tail[r]],
                    prompt,
                    done,
                    taken,
                    most_tokens,
                    batch_cap - held[r],
                    idle[r],
                    idles[r],
                    room,
                )
            if count == 0:
                break
            head[r] += begun
            held[r] += begun
            idles[r] -= used
            size[r, k] = count
            flying[r] += 1
            f = _features(batch[r, k, :count], prompt, done, taken)
            stage_s = 0.0
            for j in range(_WIDTH):
                stage_s += f[j] * cost[j]
            at_s = now_s
            reached = clock[r].copy()
            for stage in range(stages):
                if free_s[r, stage] > at_s:
                    at_s = free_s[r, stage]
                    reached[:] = free[r, stage]
                at_s += stage_s
                reached += f
                free_s[r, stage] = at_s
                free[r, stage] = reached
            leaves_s[r, k] = at_s
            leaves[r, k] = reached
    return first_s, end_s, features


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


@njit
def _whole_prompts(
    batch: Ints,
    queue: Ints,
    prompt: Ints,
    taken: Ints,
    most_tokens: int,
    most: int,
    idle: Ints,
    idles: int,
    room: int,
) -> tuple[int, int, int]:
    """Prompts if any fits, otherwise decodes; the batch's size, prompts begun, idle ones used."""
    count = 0
    longest = 0
    for i in queue:
        longest = max(longest, prompt[i])
        if (count + 1) * longest > most_tokens or count == most:
            break
        batch[count] = i
        taken[i] = prompt[i]
        count += 1
    if count > 0:
        return count, count, 0
    count = min(idles, room)
    for k in range(count):
        batch[k] = idle[k]
        taken[idle[k]] = 1
    for k in range(idles - count):
        idle[k] = idle[k + count]
    return count, 0, count


@njit
def _chunks(
    batch: Ints,
    queue: Ints,
    prompt: Ints,
    done: Ints,
    taken: Ints,
    most_tokens: int,
    most: int,
    idle: Ints,
    idles: int,
    room: int,
) -> tuple[int, int, int]:
    """Decodes, then unfinished prompts, then new ones; as `_whole_prompts`."""
    count = 0
    tokens = 0
    looked = min(idles, room)
    for decoding in (True, False):
        for k in range(looked):
            i = idle[k]
            if i < 0 or (done[i] > prompt[i]) != decoding:
                continue
            amount = 1 if decoding else min(prompt[i] - done[i], most_tokens - tokens)
            if amount <= 0:
                continue
            batch[count] = i
            taken[i] = amount
            tokens += amount
            count += 1
            idle[k] = -1 - i
    used = count
    begun = 0
    for i in queue:
        amount = min(prompt[i], most_tokens - tokens)
        if begun == most or count == room or amount <= 0:
            break
        batch[count] = i
        taken[i] = amount
        tokens += amount
        count += 1
        begun += 1
    kept = 0
    for k in range(idles):
        if idle[k] >= 0:
            idle[kept] = idle[k]
            kept += 1
    return count, begun, used


@njit
def _features(batch: Ints, prompt: Ints, done: Ints, taken: Ints) -> Floats:
    f = np.zeros(_WIDTH)
    tokens = 0
    decoding = 0
    context = 0
    prefilling = 0
    squared = 0.0
    for i in batch:
        tokens += taken[i]
        if done[i] > prompt[i]:
            decoding += 1
            context += done[i]
        else:
            prefilling += 1
            squared += taken[i] * (taken[i] + 2.0 * done[i])
    rounded = (tokens + 7) // 8 * 8
    f[0] = 1.0
    f[1] = rounded
    f[2] = max(rounded - TILE_TOKENS, 0)
    f[3] = max((tokens + TILE_TOKENS - 1) // TILE_TOKENS * TILE_TOKENS - TILE_TOKENS, 0)
    if decoding > 0:
        factor = 1.1 if decoding > 1 else 1.0
        f[4] = factor * decoding * ((context // decoding + 63) // 64 * 64)
    if prefilling > 0:
        f[5] = (1.1 if prefilling > 1 else 1.0) * squared
    return f
