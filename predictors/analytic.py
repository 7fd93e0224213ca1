"""Analytic cost estimates from the hardware profile (SPEC A3) and the marginal cost (DESIGN).

Plain numpy formulas over state rows (`predictors/ledger.py`), broadcasting over any leading
dimensions: the router calls them for one decision, the vectorised environment for many clusters at
once, and both get the same numbers.

The marginal cost of sending a request to a replica is what it changes in the cluster's cost J
(EVALUATION: latency over SLO): its own TTFT and TPOT there, what it inflicts on requests already
decoding there, and a congestion term for those still to come.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L

Array = NDArray[np.float64]

INFLICTED_WEIGHT = 1.0
"""Weight of the delay inflicted on others in the marginal cost."""
CONGESTION_WEIGHT = 0.5
"""Weight of the congestion term in the marginal cost."""


class Load(NamedTuple):
    """A replica's load now, by dead reckoning from the last scrape. Each field: (..., n)."""

    running: Array
    """Sequences decoding or prefilling."""
    waiting: Array
    queue: Array
    """Running plus waiting."""
    kv_usage: Array
    context_tokens: Array
    """Tokens in the KV cache of what decodes."""
    prefill_tokens: Array
    """Prompt tokens still to be computed before a new request's turn comes."""


class Estimate(NamedTuple):
    """What a request would cost on each candidate. Each field: (..., n), seconds, but the last."""

    raw_ttft_s: Array
    """Without bias correction: what the corrector compares outcomes with."""
    raw_tpot_s: Array
    ttft_s: Array
    tpot_s: Array
    inflicted_s: Array
    """Delay summed over the requests already decoding there."""
    congestion_s: Array
    marginal_cost: Array
    """In units of J, without dimension."""


def load_now(state: Array) -> Load:
    """Dead reckoning: last scrape, plus own dispatches and minus own completions since.

    Never less than the router's own requests in flight; so it holds before the first scrape too.
    """
    inflight = state[..., L.INFLIGHT]
    since = state[..., L.SINCE_SCRAPE]
    queue = np.maximum(state[..., L.RUNNING] + state[..., L.WAITING] + since, inflight)
    running = np.minimum(queue, state[..., L.MAX_NUM_SEQS])
    # Requests known to wait keep waiting until a scrape says otherwise; new ones prefill at once.
    still_waiting = np.clip(state[..., L.WAITING] + np.minimum(since, 0.0), 0.0, queue)
    waiting = np.maximum(still_waiting, queue - running)
    running = queue - waiting
    capacity = state[..., L.KV_CAPACITY_TOKENS]
    scraped_tokens = state[..., L.KV_USAGE] * capacity + state[..., L.TOKENS_SINCE_SCRAPE]
    own_tokens = state[..., L.PROMPT_TOKENS] + 0.5 * state[..., L.OUTPUT_TOKENS]
    kv_tokens = np.maximum(np.maximum(scraped_tokens, 0.0), own_tokens)
    mean_prompt = state[..., L.PROMPT_TOKENS] / np.maximum(inflight, 1.0)
    others_waiting = np.maximum(waiting - state[..., L.INFLIGHT_PREFILL], 0.0)
    prefill_tokens = state[..., L.PREFILL_TOKENS] + others_waiting * mean_prompt
    context = np.maximum(kv_tokens - prefill_tokens, 0.0)
    return Load(
        running=running,
        waiting=waiting,
        queue=queue,
        kv_usage=np.clip(kv_tokens / capacity, 0.0, 1.5),
        context_tokens=np.minimum(context, capacity),
        prefill_tokens=prefill_tokens,
    )


def estimate(
    state: Array,
    load: Load,
    prompt_tokens: Array,
    uncached_tokens: Array,
    output_p50: Array,
    ttft_slo_s: Array,
    tpot_slo_s: Array,
) -> Estimate:
    """Cost of one request on every candidate.

    Args:
        state: (..., n, STATE_WIDTH).
        load: `load_now(state)`.
        prompt_tokens, output_p50, ttft_slo_s, tpot_slo_s: (..., 1).
        uncached_tokens: (..., n).
    """
    decoding = np.maximum(load.running - state[..., L.INFLIGHT_PREFILL], 0.0)
    decode_s = _decode_iteration_s(state, decoding, load.context_tokens)
    queue_s = prefill_s(state, load.prefill_tokens, decode_s)
    own_prefill_s = prefill_s(state, uncached_tokens, decode_s)
    admission_s = _admission_s(state, load, prompt_tokens, decode_s)
    raw_ttft_s = 0.5 * decode_s * (decoding > 0) + queue_s + own_prefill_s + admission_s

    mean_context = prompt_tokens + 0.5 * output_p50
    with_it_s = decode_s + state[..., L.DECODE_SEQ_S] + state[..., L.DECODE_CONTEXT_S] * mean_context
    # Others' prefills stall its decoding: they take their share of the engine's time.
    stall = queue_s / np.maximum(queue_s + output_p50 * with_it_s, 1e-9)
    raw_tpot_s = with_it_s * (1.0 + stall)

    ttft_s = raw_ttft_s * np.exp(state[..., L.LOG_BIAS_TTFT])
    tpot_s = raw_tpot_s * np.exp(state[..., L.LOG_BIAS_TPOT])

    inflight_output = state[..., L.OUTPUT_TOKENS] / np.maximum(state[..., L.INFLIGHT], 1.0)
    others_output = np.where(state[..., L.INFLIGHT] > 0, inflight_output, output_p50)
    overlap = np.minimum(output_p50, 0.5 * others_output)
    slower_s = with_it_s - decode_s
    inflicted_s = decoding * (own_prefill_s + overlap * slower_s)
    inflicted = inflicted_s / (np.maximum(others_output, 1.0) * tpot_slo_s)
    # Whoever arrives while this prefill is queued waits behind it: the longer the queue, the likelier.
    congestion_s = own_prefill_s * queue_s / ttft_slo_s + decoding * slower_s
    marginal_cost = (
        ttft_s / ttft_slo_s
        + tpot_s / tpot_slo_s
        + INFLICTED_WEIGHT * inflicted
        + CONGESTION_WEIGHT * congestion_s / ttft_slo_s
    )
    return Estimate(raw_ttft_s, raw_tpot_s, ttft_s, tpot_s, inflicted_s, congestion_s, marginal_cost)


def unloaded_ttft_s(state: Array, prompt_tokens: Array) -> Array:
    """TTFT of an uncached prompt on an idle replica, (..., n)."""
    idle_s = _decode_iteration_s(state, np.zeros(1), np.zeros(1))
    return prefill_s(state, prompt_tokens, idle_s)


def prefill_s(state: Array, tokens: Array, decode_s: Array) -> Array:
    """Time to prefill `tokens` in chunks, each iteration also paying for what decodes beside it."""
    chunks = tokens / state[..., L.MAX_BATCHED_TOKENS]
    chunks = np.where(tokens > 0, np.maximum(chunks, 1.0), 0.0)
    base_s = state[..., L.DECODE_BASE_S]
    compute_s = (
        chunks * state[..., L.PREFILL_BASE_S]
        + tokens * state[..., L.PREFILL_TOKEN_S]
        + tokens * np.minimum(tokens, 4096.0) * state[..., L.PREFILL_TOKEN2_S]
    )
    return np.maximum(compute_s, chunks * base_s) + chunks * (decode_s - base_s)


def _decode_iteration_s(state: Array, sequences: Array, context_tokens: Array) -> Array:
    return (
        state[..., L.HOST_OVERHEAD_S]
        + state[..., L.DECODE_BASE_S]
        + state[..., L.DECODE_SEQ_S] * sequences
        + state[..., L.DECODE_CONTEXT_S] * context_tokens
    )


def _admission_s(state: Array, load: Load, prompt_tokens: Array, decode_s: Array) -> Array:
    """Wait for a batch slot and for KV memory, from the rate at which running requests end."""
    inflight_output = state[..., L.OUTPUT_TOKENS] / np.maximum(state[..., L.INFLIGHT], 1.0)
    mean_output = np.maximum(inflight_output, 1.0)
    ends_per_s = load.running / (mean_output * decode_s)
    slots_short = np.maximum(load.queue + 1.0 - state[..., L.MAX_NUM_SEQS], 0.0)
    capacity = state[..., L.KV_CAPACITY_TOKENS]
    tokens_short = np.maximum(load.kv_usage * capacity + prompt_tokens - capacity, 0.0)
    tokens_per_request = np.maximum(load.kv_usage * capacity / np.maximum(load.queue, 1.0), 1.0)
    requests_short = np.maximum(slots_short, tokens_short / tokens_per_request)
    return np.where(requests_short > 0, requests_short / np.maximum(ends_per_s, 1e-6), 0.0)
