"""What the router knows of each replica: one row of numbers, and how events change it.

A pool's knowledge is a float64 matrix (replicas, `STATE_WIDTH`). Its columns are of three kinds: the
replica's profile (static), what the last scrape of its metrics said, and the router's own account of
what it dispatched there and how that went (dead reckoning). Nothing here is the simulator's truth.

The update functions take one row and plain numbers, use no objects and allocate nothing, so the
router calls them as they are and the cluster model compiles the same functions with numba: there is
one definition of what is known, in training and in serving.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from steersman.traces.schema import HardwareProfile

Row = NDArray[np.float64]

# Profile (static; seconds, tokens, GiB).
DECODE_BASE_S = 0
DECODE_SEQ_S = 1
DECODE_CONTEXT_S = 2
PREFILL_BASE_S = 3
PREFILL_TOKEN_S = 4
PREFILL_TOKEN2_S = 5
HOST_OVERHEAD_S = 6
MAX_NUM_SEQS = 7
MAX_BATCHED_TOKENS = 8
KV_CAPACITY_TOKENS = 9
GPU_MEMORY_GIB = 10
WEIGHTS_GIB = 11
BASE_WEIGHT = 12  # SPEC B1: hardware factor over the model's size class
# The last scrape.
SCRAPED_AT_S = 13  # -inf before the first
RUNNING = 14
WAITING = 15
KV_USAGE = 16
# The router's own account.
INFLIGHT = 17  # dispatched and not ended
INFLIGHT_PREFILL = 18  # of those, without a first token yet
PREFILL_TOKENS = 19  # uncached prompt tokens of INFLIGHT_PREFILL
PROMPT_TOKENS = 20  # prompt tokens of INFLIGHT
OUTPUT_TOKENS = 21  # predicted output tokens (p50) of INFLIGHT
SINCE_SCRAPE = 22  # dispatched minus ended since the last scrape
TOKENS_SINCE_SCRAPE = 23  # prompt tokens dispatched minus all tokens ended since the last scrape
MEAN_TTFT_S = 24  # exponentially weighted over outcomes; 0 before the first
MEAN_TPOT_S = 25
MEAN_E2E_S = 26
LOG_BIAS_TTFT = 27  # typical log(actual / analytic estimate): the online bias corrector (SPEC A6)
LOG_BIAS_TPOT = 28
HEALTHY = 29  # 1 or 0
DRAINING = 30  # 1 or 0
COLD_TTFT = 31  # outcomes still to pass before anything is learned: it has just come (back) up
COLD_TPOT = 32
# Its prefix cache, as believed (`prefix_index.py`).
CACHE_OLDEST_S = 33  # when what it would give up next was last used; -inf: it has room
MATCHED_SHARE = 34  # of a prompt sent there that it held, a running mean
# What the engine counts of it: the belief may be wrong.
PREFIX_QUERIES = 35  # prompt tokens it looked up, its counter when last told; UNTOLD: never
PREFIX_HITS = 36  # those it held
QUERIES_BEFORE = 37  # what the counters are above these counts as lately
HITS_BEFORE = 38
PROMPTS_LATELY = 39  # prompt tokens sent there lately
BELIEVED_LATELY = 40  # those believed to be held
CACHE_TRUST = 41  # share of what is believed to be held that is, as the two tell lately; at most 1

STATE_WIDTH = 42

SMOOTHING = 0.1
"""Weight of a new outcome in the running means: about the last ten count."""
BIAS_SMOOTHING = 0.07
BIAS_STEP = 0.3
"""An outcome's log error beyond the bias counts at most as this much, so that none moves the bias by
more than 2 %: errors of TTFT have a heavy tail (a queue not foreseen), which says nothing of the next
request. On simulated traffic at 60 to 95 % load the median error is 0.5 % smaller than with a smoothing
of 0.05 and no bound, and 30 % smaller where replicas saturate. A bias shared by all replicas of one
hardware and model was worse (stragglers), one pooled from both no better."""
BIAS_LIMIT = 1.6
"""Bound on |log bias|, a factor of five either way."""
MATCH_SMOOTHING = 0.02
"""Weight of a new prompt in `MATCHED_SHARE`: about the last fifty count."""
UNTOLD = -1.0
"""In place of a counter that an engine does not have, or not yet."""
TRUST_TOKENS = 100_000.0
"""Prompt tokens sent there that make what was before count 1/e of what it did: what is "lately"."""
TRUST_PRIOR_TOKENS = 2_000.0
"""Tokens that agree with the belief, added to those looked up: so that one prompt says little."""
TRUST_PRIOR_SHARE = 0.01
"""Added to both shares, so that there is a ratio where nothing is believed."""
COLD_OUTCOMES = 4.0
"""The first outcomes of a replica that has just come up: engines compile and fill their caches then."""


def new_row(profile: HardwareProfile) -> Row:
    """The row of a replica nobody has scraped or used yet; healthy."""
    row = np.zeros(STATE_WIDTH)
    row[DECODE_BASE_S] = profile.decode_base_s
    row[DECODE_SEQ_S] = profile.decode_seq_s
    row[DECODE_CONTEXT_S] = profile.decode_context_s
    row[PREFILL_BASE_S] = profile.prefill_base_s
    row[PREFILL_TOKEN_S] = profile.prefill_token_s
    row[PREFILL_TOKEN2_S] = profile.prefill_token2_s
    row[HOST_OVERHEAD_S] = profile.host_overhead_s
    row[MAX_NUM_SEQS] = profile.max_num_seqs
    row[MAX_BATCHED_TOKENS] = profile.max_batched_tokens
    row[KV_CAPACITY_TOKENS] = profile.kv_capacity_tokens
    row[GPU_MEMORY_GIB] = profile.gpu_memory_gib
    row[WEIGHTS_GIB] = profile.model.weights_gib
    row[BASE_WEIGHT] = profile.hardware_factor / size_class(profile.model.parameters_b)
    row[SCRAPED_AT_S] = -np.inf
    row[CACHE_OLDEST_S] = -np.inf
    row[PREFIX_QUERIES : HITS_BEFORE + 1] = UNTOLD
    row[CACHE_TRUST] = 1.0
    row[HEALTHY] = 1.0
    return row


def size_class(parameters_b: float) -> float:
    """SPEC B1's size class, 1:10:100 for 7B:70B:700B: a power of ten per decade of parameters."""
    return float(10.0 ** np.round(np.log10(max(parameters_b, 0.1) / 7.0)))


def on_dispatch(row: Row, prompt_tokens: float, uncached_tokens: float, output_p50: float) -> None:
    """A request was sent there. `uncached_tokens`: its prompt tokens not believed to be cached there."""
    row[INFLIGHT] += 1.0
    row[INFLIGHT_PREFILL] += 1.0
    row[PREFILL_TOKENS] += uncached_tokens
    row[PROMPT_TOKENS] += prompt_tokens
    row[OUTPUT_TOKENS] += output_p50
    row[SINCE_SCRAPE] += 1.0
    row[TOKENS_SINCE_SCRAPE] += prompt_tokens
    held = (prompt_tokens - uncached_tokens) / max(prompt_tokens, 1.0)
    row[MATCHED_SHARE] += MATCH_SMOOTHING * (held - row[MATCHED_SHARE])


def on_lookup(row: Row, prompt_tokens: float, believed_tokens: float) -> None:
    """A prompt was sent there. `believed_tokens`: those of it that, by all that was sent there before,
    the prefix cache holds."""
    kept = TRUST_TOKENS / (TRUST_TOKENS + prompt_tokens)
    row[PROMPTS_LATELY] = kept * (row[PROMPTS_LATELY] + prompt_tokens)
    row[BELIEVED_LATELY] = kept * (row[BELIEVED_LATELY] + believed_tokens)
    row[QUERIES_BEFORE] = row[PREFIX_QUERIES] - kept * (row[PREFIX_QUERIES] - row[QUERIES_BEFORE])
    row[HITS_BEFORE] = row[PREFIX_HITS] - kept * (row[PREFIX_HITS] - row[HITS_BEFORE])
    row[CACHE_TRUST] = _cache_trust(row)


def on_first_token(row: Row, uncached_tokens: float, ttft_s: float, estimated_ttft_s: float) -> None:
    """Its first token arrived. `ttft_s` counts from dispatch; `estimated_ttft_s` is the analytic
    estimate made then, without bias correction; 0: nobody saw the token, and nothing is learned."""
    row[INFLIGHT_PREFILL] -= 1.0
    row[PREFILL_TOKENS] -= uncached_tokens
    if ttft_s > 0.0 and estimated_ttft_s > 0.0 and _warm(row, COLD_TTFT):
        row[MEAN_TTFT_S] = _smooth(row[MEAN_TTFT_S], ttft_s, SMOOTHING)
        row[LOG_BIAS_TTFT] = _corrected(row[LOG_BIAS_TTFT], ttft_s, estimated_ttft_s)


def on_finish(
    row: Row,
    prompt_tokens: float,
    output_p50: float,
    output_tokens: float,
    e2e_s: float,
    tpot_s: float,
    estimated_tpot_s: float,
) -> None:
    """It ended well, after its first token. `e2e_s` counts from dispatch; `estimated_tpot_s` is the
    analytic estimate without bias correction; 0: its tokens were not seen one by one."""
    _leave(row, prompt_tokens, output_p50, output_tokens)
    if not _warm(row, COLD_TPOT):
        return
    row[MEAN_E2E_S] = _smooth(row[MEAN_E2E_S], e2e_s, SMOOTHING)
    if output_tokens > 1.0 and tpot_s > 0.0 and estimated_tpot_s > 0.0:
        row[MEAN_TPOT_S] = _smooth(row[MEAN_TPOT_S], tpot_s, SMOOTHING)
        row[LOG_BIAS_TPOT] = _corrected(row[LOG_BIAS_TPOT], tpot_s, estimated_tpot_s)


def on_abort(
    row: Row,
    prompt_tokens: float,
    uncached_tokens: float,
    output_p50: float,
    output_tokens: float,
    had_first_token: bool,
) -> None:
    """It failed or was cancelled: the load leaves, the means learn nothing (SPEC A6)."""
    if not had_first_token:
        row[INFLIGHT_PREFILL] -= 1.0
        row[PREFILL_TOKENS] -= uncached_tokens
    _leave(row, prompt_tokens, output_p50, output_tokens)


def on_scrape(
    row: Row,
    at_s: float,
    running: float,
    waiting: float,
    kv_usage: float,
    prefix_queries: float = UNTOLD,
    prefix_hits: float = UNTOLD,
) -> None:
    """A scrape succeeded: the account since the last one starts anew. `prefix_queries`, `prefix_hits`:
    counters of prompt tokens."""
    row[SCRAPED_AT_S] = at_s
    row[RUNNING] = running
    row[WAITING] = waiting
    row[KV_USAGE] = kv_usage
    row[SINCE_SCRAPE] = 0.0
    row[TOKENS_SINCE_SCRAPE] = 0.0
    if prefix_queries != UNTOLD:
        _count_hits(row, prefix_queries, prefix_hits)


def on_health(state: Row, index: int, healthy: bool) -> None:
    """A replica is up, or not, as far as anybody knows.

    One that comes up is cold: its first `COLD_OUTCOMES` outcomes teach nothing. What was learned of it
    holds on; of one that never answered, what its peers of the same hardware and model have learned is
    believed.

    Args:
        state: (n, STATE_WIDTH) of everybody.
        index: whose row it is.
    """
    row = state[index]
    if healthy and row[HEALTHY] == 0.0:
        row[COLD_TTFT] = COLD_OUTCOMES
        row[COLD_TPOT] = COLD_OUTCOMES
        _inherit(state, index, LOG_BIAS_TTFT)
        _inherit(state, index, LOG_BIAS_TPOT)
    row[HEALTHY] = 1.0 if healthy else 0.0


def is_cold(row: Row) -> bool:
    """Whether outcomes of requests sent there now say anything about how it will be."""
    return bool(row[COLD_TTFT] > 0.0 or row[COLD_TPOT] > 0.0)


def _inherit(state: Row, index: int, column: int) -> None:
    """A bias that was never learned is the mean of those of peers."""
    if state[index, column] != 0.0:
        return
    total, count = 0.0, 0
    for other in range(state.shape[0]):
        if state[other, column] != 0.0 and _alike(state, index, other):
            total += state[other, column]
            count += 1
    if count > 0:
        state[index, column] = total / count


def _alike(state: Row, one: int, other: int) -> bool:
    """Whether two replicas are of the same hardware and model: by their profiles, but for the limits
    that an operator sets."""
    return bool(
        state[one, DECODE_BASE_S] == state[other, DECODE_BASE_S]
        and state[one, DECODE_CONTEXT_S] == state[other, DECODE_CONTEXT_S]
        and state[one, PREFILL_TOKEN_S] == state[other, PREFILL_TOKEN_S]
        and state[one, GPU_MEMORY_GIB] == state[other, GPU_MEMORY_GIB]
        and state[one, WEIGHTS_GIB] == state[other, WEIGHTS_GIB]
    )


def _warm(row: Row, column: int) -> bool:
    """Whether an outcome may teach; one of a cold replica only counts down."""
    if row[column] > 0.0:
        row[column] -= 1.0
        return False
    return True


def _count_hits(row: Row, queries: float, hits: float) -> None:
    """The engine's counters are these by now."""
    started_again = queries < row[PREFIX_QUERIES] or hits < row[PREFIX_HITS]
    if row[PREFIX_QUERIES] == UNTOLD or started_again:
        # What it counted before anybody looked, or since it started, says nothing of lately.
        row[QUERIES_BEFORE] += queries - row[PREFIX_QUERIES]
        row[HITS_BEFORE] += hits - row[PREFIX_HITS]
    row[PREFIX_QUERIES] = queries
    row[PREFIX_HITS] = hits
    row[CACHE_TRUST] = _cache_trust(row)


def _cache_trust(row: Row) -> float:
    """The share that hits over the share that was believed to, since the engine's cache gives to running
    requests what the belief takes to be held. Shares, since others may send prompts there too."""
    believed = row[BELIEVED_LATELY] / max(row[PROMPTS_LATELY], 1.0)
    queries = row[PREFIX_QUERIES] - row[QUERIES_BEFORE] + TRUST_PRIOR_TOKENS
    hits = row[PREFIX_HITS] - row[HITS_BEFORE] + TRUST_PRIOR_TOKENS * believed
    trust: float = min((hits / queries + TRUST_PRIOR_SHARE) / (believed + TRUST_PRIOR_SHARE), 1.0)
    return trust


def _leave(row: Row, prompt_tokens: float, output_p50: float, output_tokens: float) -> None:
    row[INFLIGHT] -= 1.0
    row[PROMPT_TOKENS] -= prompt_tokens
    row[OUTPUT_TOKENS] -= output_p50
    row[SINCE_SCRAPE] -= 1.0
    row[TOKENS_SINCE_SCRAPE] -= prompt_tokens + output_tokens


def _smooth(mean: float, value: float, weight: float) -> float:
    return value if mean == 0.0 else mean + weight * (value - mean)


def _corrected(log_bias: float, actual_s: float, estimated_s: float) -> float:
    """A running mean that no outcome moves far (Huber's location estimate, 1964, made recursive)."""
    beyond = math.log(actual_s / estimated_s) - log_bias
    moved = log_bias + BIAS_SMOOTHING * min(max(beyond, -BIAS_STEP), BIAS_STEP)
    return min(max(moved, -BIAS_LIMIT), BIAS_LIMIT)
