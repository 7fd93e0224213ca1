"""A replica's load now, by dead reckoning from the last scrape.

Formulas as in `predictors/analytic.py`, which says for what they are written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L

Array = NDArray[np.float64]
Columns = tuple[Array, ...]
"""Of the state, STATE_WIDTH of them, (..., n) each."""

MAX_CACHE_AGE_S = 3600.0

_ZERO, _HALF, _ONE, _MOST_USE = np.array(0.0), np.array(0.5), np.array(1.0), np.array(1.5)
_MAX_CACHE_AGE_S = np.array(MAX_CACHE_AGE_S)


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
    sharers: Array
    """Own requests in flight, at least 1: what the account sums up is divided by this."""
    mean_prompt: Array
    """Prompt tokens of an own request in flight; 0 where there is none."""


def load_now(state: Array) -> Load:
    """`load_of` rows of the state, (..., n, STATE_WIDTH)."""
    return load_of(columns_of(state))


def columns_of(state: Array) -> Columns:
    """The columns of (..., n, STATE_WIDTH), views of (..., n) each: taken once, they are at hand for the
    fifty times that one is needed."""
    return tuple(state.T if state.ndim == 2 else np.moveaxis(state, -1, 0))


def load_of(columns: Columns) -> Load:
    """Dead reckoning: last scrape, plus own dispatches and minus own completions since.

    Never less than the router's own requests in flight; so it holds before the first scrape too.
    """
    inflight = columns[L.INFLIGHT]
    since = columns[L.SINCE_SCRAPE]
    scraped_waiting = columns[L.WAITING]
    queue = np.maximum(columns[L.RUNNING] + scraped_waiting + since, inflight)
    running = np.minimum(queue, columns[L.MAX_NUM_SEQS])
    # Requests known to wait keep waiting until a scrape says otherwise; new ones prefill at once.
    still_waiting = np.minimum(np.maximum(scraped_waiting + np.minimum(since, _ZERO), _ZERO), queue)
    waiting = np.maximum(still_waiting, queue - running)
    running = queue - waiting
    capacity = columns[L.KV_CAPACITY_TOKENS]
    scraped_tokens = columns[L.KV_USAGE] * capacity + columns[L.TOKENS_SINCE_SCRAPE]
    prompts = columns[L.PROMPT_TOKENS]
    own_tokens = prompts + _HALF * columns[L.OUTPUT_TOKENS]
    kv_tokens = np.maximum(np.maximum(scraped_tokens, _ZERO), own_tokens)
    sharers = np.maximum(inflight, _ONE)
    mean_prompt = prompts / sharers
    others_waiting = np.maximum(waiting - columns[L.INFLIGHT_PREFILL], _ZERO)
    prefill_tokens = columns[L.PREFILL_TOKENS] + others_waiting * mean_prompt
    context = np.maximum(kv_tokens - prefill_tokens, _ZERO)
    return Load(
        running=running,
        waiting=waiting,
        queue=queue,
        kv_usage=np.minimum(kv_tokens / capacity, _MOST_USE),
        context_tokens=np.minimum(context, capacity),
        prefill_tokens=prefill_tokens,
        sharers=sharers,
        mean_prompt=mean_prompt,
    )


def cache_age_s(columns: Columns, now_s: Array) -> Array:
    """For how long what a replica's prefix cache would give up next has not been used, (..., n);
    `MAX_CACHE_AGE_S` where there is room, or it is longer.

    Args:
        now_s: (..., 1), or () for one request.
    """
    age_s: Array = np.minimum(np.maximum(now_s - columns[L.CACHE_OLDEST_S], _ZERO), _MAX_CACHE_AGE_S)
    return age_s


def beside_replicas(values: Array) -> Array:
    """One number a request, (...), so that it meets (..., n). A single one stays without dimensions:
    numpy takes twice as long to stretch a dimension of 1."""
    return values[..., None] if values.ndim else values
