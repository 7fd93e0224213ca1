"""The features: what is known of a request, and of a request on a candidate replica.

One definition for the trainer, the simulator and the router. `env/observation.py` only assembles
what is computed here; the served models name these lists in their metadata and refuse others.

All values are in natural units (tokens, seconds, fractions). Networks compress them inside their own
graph, guards compare them with the range seen in training.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import analytic
from steersman.predictors import ledger as L
from steersman.predictors.load import Columns, Load, beside_replicas, cache_age_s, columns_of, load_of
from steersman.traces.schema import QuestionType, Request

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]

HISTORY_FEATURES: tuple[str, ...] = (
    "tenant_output_p50",  # of the tenant's last 200 answers from this model; 0 before the first
    "tenant_output_p90",
    "tenant_recent_p50",  # last 50
    "tenant_recent_p90",
    "tenant_long_p50",  # last 1000
    "tenant_long_p90",
    "tenant_blend_p50",  # of the three, weighted by how well they foresaw the tenant's answers
    "tenant_blend_p90",
    "tenant_answers",  # how many of those there are; with 0 the eight above are of all tenants
    "session_output_tokens",  # of the session's last answer; 0 without one
    "session_turn",  # from 1; 0 without a session
    "expected_turns",  # of the session after this one
    "tool_call_likelihood",
)
"""What the past says of a request when it comes in (`predictors/past.py`)."""

LENGTH_FEATURES: tuple[str, ...] = (
    "input_tokens",
    "max_tokens",  # 0: the client set no limit
    "stream",
    "priority",
    "tools",
    "tool_choice",
    "has_code",
    "question_type",  # position in QuestionType, a category
    "question_bytes",
    "asked_tokens",
    "wording",
    "turns",
    "prefix_blocks",
    "has_lora",
    "hour_sin",  # both 0 where the hour is unknown
    "hour_cos",
    *HISTORY_FEATURES,
)
"""Inputs of the output-length model: what is known before any prediction."""

REQUEST_FEATURES: tuple[str, ...] = (
    *LENGTH_FEATURES,
    "output_p50",
    "output_p90",
    "ttft_slo_s",
    "tpot_slo_s",
)
"""`Observation.request`."""

COST_TERMS = analytic.Terms._fields
"""Terms of the marginal cost, at weight 1."""

REPLICA_FEATURES: tuple[str, ...] = (
    "running",
    "waiting",
    "queue",
    "batch_use",
    "kv_usage",
    "inflight",
    "inflight_prefill",
    "prefill_tokens",
    "context_tokens",
    "output_tokens",
    "match_fraction",
    "uncached_tokens",
    "raw_ttft_s",
    "raw_tpot_s",
    "ttft_s",
    "tpot_s",
    "e2e_s",
    "inflicted_s",
    "congestion_s",
    *COST_TERMS,
    "marginal_cost",
    "mean_ttft_s",
    "mean_tpot_s",
    "mean_e2e_s",
    "age_s",
    "cache_age_s",
    "decode_base_s",
    "decode_seq_s",
    "decode_context_s",
    "prefill_token_s",
    "kv_capacity_tokens",
    "max_num_seqs",
    "gpu_memory_gib",
    "weights_gib",
    "base_weight",
    "matched_share",
)
"""Columns of `Observation.replicas`."""

POOL_FEATURES: tuple[str, ...] = (
    "candidates",
    "inflight_per_candidate",
    "queue_per_candidate",
    "mean_ttft_share",
    "mean_tpot_share",
    "mean_age_s",
    "min_marginal_cost",
    "speed_ratio",  # of the quickest candidate's prefill to the slowest's
    "best_match_fraction",
)
"""`Observation.pool`."""

REQUEST_INDEX = {name: i for i, name in enumerate(REQUEST_FEATURES)}
POOL_INDEX = {name: i for i, name in enumerate(POOL_FEATURES)}
REPLICA_INDEX = {name: i for i, name in enumerate(REPLICA_FEATURES)}

_FROM_STATE = {
    "inflight": L.INFLIGHT,
    "inflight_prefill": L.INFLIGHT_PREFILL,
    "output_tokens": L.OUTPUT_TOKENS,
    "mean_ttft_s": L.MEAN_TTFT_S,
    "mean_tpot_s": L.MEAN_TPOT_S,
    "mean_e2e_s": L.MEAN_E2E_S,
    "decode_base_s": L.DECODE_BASE_S,
    "decode_seq_s": L.DECODE_SEQ_S,
    "decode_context_s": L.DECODE_CONTEXT_S,
    "prefill_token_s": L.PREFILL_TOKEN_S,
    "kv_capacity_tokens": L.KV_CAPACITY_TOKENS,
    "max_num_seqs": L.MAX_NUM_SEQS,
    "gpu_memory_gib": L.GPU_MEMORY_GIB,
    "weights_gib": L.WEIGHTS_GIB,
    "base_weight": L.BASE_WEIGHT,
    "matched_share": L.MATCHED_SHARE,
}
"""Features that are columns of the state as they are."""


def _runs(pairs: Iterable[tuple[int, int]]) -> tuple[tuple[slice, slice], ...]:
    """Pairs of positions, those that follow each other on both sides as one pair of slices."""
    runs: list[list[int]] = []
    for one, other in pairs:
        if runs and (one, other) == (runs[-1][0] + runs[-1][2], runs[-1][1] + runs[-1][2]):
            runs[-1][2] += 1
        else:
            runs.append([one, other, 1])
    return tuple((slice(one, one + n), slice(other, other + n)) for one, other, n in runs)


KNOWN = tuple((REPLICA_INDEX[name], column) for name, column in _FROM_STATE.items())
"""Features that are columns of the state: their places, and the columns."""
_KNOWN_RUNS = _runs(KNOWN)

SEEN = tuple(
    name for name in REPLICA_FEATURES if name not in {*_FROM_STATE, *COST_TERMS, "marginal_cost"}
)
"""Those that `seen` computes; the rest are the marginal cost and its terms."""
COMPUTED = tuple(REPLICA_INDEX[name] for name in (*SEEN, *COST_TERMS, "marginal_cost"))
"""Places of `seen`, the terms of the marginal cost, and itself."""
_in_order = itemgetter(
    *(
        _FROM_STATE[name] if name in _FROM_STATE else L.STATE_WIDTH + COMPUTED.index(i)
        for i, name in enumerate(REPLICA_FEATURES)
    )
)
"""`REPLICA_FEATURES` of the state's columns, followed by what is computed."""

INPUT_TOKENS = REQUEST_INDEX["input_tokens"]
OUTPUT_P50 = REQUEST_INDEX["output_p50"]
OUTPUT_P90 = REQUEST_INDEX["output_p90"]
TTFT_SLO = REQUEST_INDEX["ttft_slo_s"]
TPOT_SLO = REQUEST_INDEX["tpot_slo_s"]
MARGINAL_COST = REPLICA_INDEX["marginal_cost"]
PREFILL_TOKEN_S = REPLICA_INDEX["prefill_token_s"]
MATCH_FRACTION = REPLICA_INDEX["match_fraction"]
AVERAGED = tuple(
    REPLICA_INDEX[name] for name in ("inflight", "queue", "ttft_share", "tpot_share", "age_s")
)
"""Of which the pool's mean is a feature, in the order of POOL_FEATURES."""
_AVERAGED = np.array(AVERAGED)
_NOBODY = np.array([float(name == "speed_ratio") for name in POOL_FEATURES], dtype=np.float32)
"""Features of a pool of which nobody may be chosen."""

MAX_AGE_S = 60.0
"""Ages above this, and of replicas never scraped, count as this."""

_QUESTION_TYPES = {kind: float(i) for i, kind in enumerate(QuestionType)}


def length_features(request: Request, past: Iterable[float]) -> Float32:
    """One request's `LENGTH_FEATURES`, (len(LENGTH_FEATURES),).

    Args:
        past: its `HISTORY_FEATURES`, as `Past.begin` gives them.
    """
    hour_sin = hour_cos = 0.0
    if request.hour_of_day is not None:
        angle = 2.0 * math.pi * request.hour_of_day / 24.0
        hour_sin, hour_cos = math.sin(angle), math.cos(angle)
    return np.array(
        (
            request.input_tokens,
            request.max_tokens or 0,
            request.stream,
            request.priority,
            request.tools,
            request.tool_choice,
            request.has_code,
            _QUESTION_TYPES[request.question_type],
            request.question_bytes,
            request.asked_tokens,
            request.wording,
            request.turns,
            len(request.block_hashes),
            request.lora_adapter is not None,
            hour_sin,
            hour_cos,
            *past,
        ),
        dtype=np.float32,
    )


def request_features(
    length_row: Float32, output_p50: float, output_p90: float, ttft_slo_s: float, tpot_slo_s: float
) -> Float32:
    """`REQUEST_FEATURES` from `LENGTH_FEATURES` and the predictions, (len(REQUEST_FEATURES),)."""
    row = np.empty(len(REQUEST_FEATURES), dtype=np.float32)
    row[: len(LENGTH_FEATURES)] = length_row
    row[len(LENGTH_FEATURES) :] = (output_p50, output_p90, ttft_slo_s, tpot_slo_s)
    return row


def features_of(
    state: Float64,
    request: Float32,
    match_tokens: Float64,
    now_s: Float64,
    excluded: Bools | None,
) -> tuple[Float32, Float32, Bools]:
    """`replica_features`, `pool_features`, and who may be chosen, (n,), of one decision.

    Args:
        excluded: (n,), replicas that may not; None for none.
        state, request, match_tokens, now_s: see `replica_features`.
    """
    replicas = replica_features(state, request, match_tokens, now_s)
    mask: Bools = is_open(state[..., L.HEALTHY], state[..., L.DRAINING])
    if excluded is not None:
        mask &= ~excluded
    return replicas, pool_features(replicas, mask), mask


def is_open(healthy: Any, draining: Any) -> Any:
    """Whether a replica takes requests, from these columns of the state."""
    return (healthy > 0.0) & (draining == 0.0)


class Formulas(NamedTuple):
    """What the router calculates for one decision, by numpy or by machine code."""

    features: Callable[
        [Float64, Float32, Float64, Float64, Bools | None], tuple[Float32, Float32, Bools]
    ]
    """As `features_of`."""
    unloaded_ttft_s: Callable[[Float64, Float64], Float64]
    """As `analytic.unloaded_ttft_s`, of one prompt."""


NUMPY = Formulas(features_of, analytic.unloaded_ttft_s)


def replica_features(state: Float64, request: Float32, match_tokens: Float64, now_s: Float64) -> Float32:
    """`REPLICA_FEATURES` of every candidate for one request.

    Args:
        state: (..., n, STATE_WIDTH).
        request: (..., len(REQUEST_FEATURES)).
        match_tokens: (..., n), prompt tokens believed to be in each replica's prefix cache.
        now_s: (...,).

    Returns:
        (..., n, len(REPLICA_FEATURES)).
    """
    if state.ndim == 2:
        # Every formula reads a column: of a single decision they are laid out one after the other.
        state = np.asfortranarray(state)
    wide = request.astype(np.float64)
    prompt = beside_replicas(wide[..., INPUT_TOKENS])
    output = np.asarray(np.maximum(beside_replicas(wide[..., OUTPUT_P50]), 1.0))
    output_p90 = beside_replicas(wide[..., OUTPUT_P90])
    ttft_slo = beside_replicas(wide[..., TTFT_SLO])
    tpot_slo = beside_replicas(wide[..., TPOT_SLO])
    columns = columns_of(state)
    match = believed_match(match_tokens, prompt)
    uncached = prompt - match * columns[L.CACHE_TRUST]
    load = load_of(columns)
    # Without dimensions it would be a number of Python's kind, which numpy is slower to accept.
    mean = np.asarray(analytic.mean_output(output, output_p90))
    now = now_s[..., None]
    cache_age = cache_age_s(columns, now)
    cost = analytic.estimate(
        columns, load, prompt, uncached, output, mean, ttft_slo, tpot_slo, cache_age
    )
    computed = (
        *seen(columns, load, cost, prompt, match, uncached, output, now, cache_age),
        *cost.terms,
        cost.marginal_cost,
    )
    features = np.empty((*state.shape[:-1], len(REPLICA_FEATURES)), dtype=np.float32)
    if state.ndim == 2:
        # All at once: column by column takes ten times as long.
        together = np.concatenate(_in_order((*columns, *computed)))
        features[...] = together.reshape(len(REPLICA_FEATURES), len(state)).T
        return features
    for there, known in _KNOWN_RUNS:
        features[..., there] = state[..., known]
    for column, values in zip(COMPUTED, computed, strict=True):
        features[..., column] = values
    return features


def believed_match(match_tokens: Float64, prompt_tokens: Float64) -> Float64:
    """Tokens of a prompt that need not be computed: an engine always computes at least the last one."""
    return np.minimum(match_tokens, np.maximum(prompt_tokens - 1.0, 0.0))


def seen(
    columns: Columns,
    load: Load,
    cost: analytic.Estimate | analytic.Foreseen,
    prompt_tokens: Float64,
    match: Float64,
    uncached_tokens: Float64,
    output_p50: Float64,
    now_s: Float64,
    cache_age: Float64,
) -> tuple[Float64, ...]:
    """The features `SEEN`, in this order, (..., n) each.

    Like the formulas of `predictors/analytic.py`, also compiled for one replica at a time.

    Args:
        match: `believed_match`, (..., n).
        uncached_tokens: (..., n), those of the prompt that are expected not to be held.
        cache_age: `cache_age_s`, (..., n).
        prompt_tokens, output_p50, now_s: (..., 1), or () for one request.
    """
    return (
        load.running,
        load.waiting,
        load.queue,
        load.running / columns[L.MAX_NUM_SEQS],
        load.kv_usage,
        load.prefill_tokens,
        load.context_tokens,
        match / np.maximum(prompt_tokens, 1.0),
        uncached_tokens,
        cost.raw_ttft_s,
        cost.raw_tpot_s,
        cost.ttft_s,
        cost.tpot_s,
        cost.ttft_s + cost.tpot_s * (output_p50 - 1.0),
        cost.inflicted_s,
        cost.congestion_s,
        np.minimum(np.maximum(now_s - columns[L.SCRAPED_AT_S], 0.0), MAX_AGE_S),
        cache_age,
    )


def pool_features(replicas: Float32, mask: NDArray[np.bool_]) -> Float32:
    """`POOL_FEATURES` over the candidates that may be chosen, (len(POOL_FEATURES),).

    Args:
        replicas: (n, len(REPLICA_FEATURES)).
        mask: (n,).
    """
    count = np.count_nonzero(mask)
    if not count:
        return _NOBODY.copy()
    rows = replicas if count == len(mask) else replicas[mask]
    # In double precision: in which order they are summed must not show.
    means = np.add.reduce(rows.T[_AVERAGED], axis=1, dtype=np.float64) / count
    cost, prefill, match = rows[:, MARGINAL_COST], rows[:, PREFILL_TOKEN_S], rows[:, MATCH_FRACTION]
    # The position of the least is found several times as fast as the least; a NaN counts as it.
    quickest = float(prefill[prefill.argmin()])
    ratio = speed_ratio(quickest, float(prefill[prefill.argmax()]))
    known = (count, *means.tolist(), cost[cost.argmin()], ratio, match[match.argmax()])
    return np.array(known, dtype=np.float32)


def speed_ratio(quickest_s: float, slowest_s: float) -> float:
    """Of one pool, from the times of a prompt's token."""
    return slowest_s / quickest_s if quickest_s > 0.0 else 1.0
