"""The features of one decision, one replica after the other: `compile.py` makes machine code of it.

The formulas are those of `analytic.py` and `features.py`. What is here is the loops around them, and
what has to be known of all replicas at once. Exponentials are taken before the passes, powers between.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L
from steersman.predictors.analytic import (
    TERM_WEIGHTS,
    TPOT_SPREAD,
    TTFT_SPREAD,
    Foreseen,
    bounded,
    chance_of,
    foresee,
    terms_of,
    unloaded_of,
    weighted,
)
from steersman.predictors.features import (
    AVERAGED,
    COMPUTED,
    INPUT_TOKENS,
    KNOWN,
    MARGINAL_COST,
    MATCH_FRACTION,
    PREFILL_TOKEN_S,
    SEEN,
    TPOT_SLO,
    TTFT_SLO,
    believed_match,
    is_open,
    seen,
    speed_ratio,
)
from steersman.predictors.load import cache_age_s, load_of

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Bools = NDArray[np.bool_]
Number = Any
"""A float: of one replica, or of the request. The formulas say arrays."""

HELD = len(Foreseen._fields) + 3
"""Numbers that the second pass needs of a replica: what is foreseen, the queue, tokens to compute, and
the time of one."""
BIASES = slice(L.LOG_BIAS_TTFT, L.LOG_BIAS_TPOT + 1)
"""Columns of the state whose exponentials the first pass needs."""
EXPONENTS = 1.0 / np.array([[TTFT_SPREAD], [TPOT_SPREAD]])
"""Of the powers between the passes, (2, 1)."""
_QUEUE, _UNCACHED, _TOKEN_S = HELD - 3, HELD - 2, HELD - 1
_FIRST_TERM = len(SEEN)
_TTFT, _TPOT = 0, 1


def first_pass(
    state: Float64,
    request: Float32,
    match_tokens: Float64,
    biases: Float64,
    output_p50: Number,
    output_mean: Number,
    now_s: Number,
    excluded: Bools,
    features: Float32,
    held: Float64,
    odds: Float64,
    mask: Bools,
) -> None:
    """All features but the marginal cost and its terms.

    Args:
        state: (n, STATE_WIDTH).
        request: (len(REQUEST_FEATURES),).
        match_tokens: (n,).
        biases: (n, 2), exponentials of LOG_BIAS_TTFT and LOG_BIAS_TPOT.
        output_p50, output_mean: tokens, at least 1.
        now_s: the decision's time.
        excluded: (n,).
        features: (n, len(REPLICA_FEATURES)), to be filled.
        held: (n, HELD), for the second pass, to be filled.
        odds: (2, n), of which `chance_met` is to take the powers, to be filled.
        mask: (n,), who may be chosen, to be filled.
    """
    prompt: Number = float(request[INPUT_TOKENS])
    ttft_slo_s: Number = float(request[TTFT_SLO])
    tpot_slo_s: Number = float(request[TPOT_SLO])
    for i in range(len(state)):
        columns = state[i]
        match = believed_match(match_tokens[i], prompt)
        uncached = prompt - match * columns[L.CACHE_TRUST]
        load = load_of(columns)
        cache_age = cache_age_s(columns, now_s)
        foreseen = foresee(
            columns,
            load,
            biases[i, _TTFT],
            biases[i, _TPOT],
            prompt,
            uncached,
            output_p50,
            output_mean,
            cache_age,
        )
        for there, column in KNOWN:
            features[i, there] = columns[column]
        found = seen(columns, load, foreseen, prompt, match, uncached, output_p50, now_s, cache_age)
        for k in range(len(SEEN)):
            features[i, COMPUTED[k]] = found[k]
        for k in range(len(foreseen)):
            held[i, k] = foreseen[k]
        held[i, _QUEUE], held[i, _UNCACHED] = load.queue, uncached
        held[i, _TOKEN_S] = columns[L.PREFILL_TOKEN_S]
        mask[i] = is_open(columns[L.HEALTHY], columns[L.DRAINING]) and not excluded[i]
        odds[_TTFT, i] = bounded(foreseen.ttft_s / ttft_slo_s)
        odds[_TPOT, i] = bounded(foreseen.tpot_s / tpot_slo_s)


def second_pass(
    request: Float32,
    held: Float64,
    odds: Float64,
    mask: Bools,
    features: Float32,
    pool: Float32,
    totals: Float64,
) -> None:
    """The marginal cost and its terms, and the pool's features.

    Args:
        held: of the first pass.
        odds: their powers.
        mask: of the first pass.
        features: of the first pass, to be completed.
        pool: (len(POOL_FEATURES),), to be filled.
        totals: (len(AVERAGED),), to sum up in.
    """
    prompt: Number = float(request[INPUT_TOKENS])
    ttft_slo_s: Number = float(request[TTFT_SLO])
    tpot_slo_s: Number = float(request[TPOT_SLO])
    least, token_s = held[0, _UNCACHED], held[0, _TOKEN_S]
    for i in range(1, len(held)):
        least = np.minimum(least, held[i, _UNCACHED])
        token_s = np.minimum(token_s, held[i, _TOKEN_S])
    for i in range(len(held)):
        row = held[i]
        foreseen = Foreseen(
            row[0], row[1], row[2], row[3], row[4], row[5], row[6], row[7], row[8], row[9]
        )
        terms = terms_of(
            foreseen,
            row[_QUEUE],
            foreseen.ttft_s / ttft_slo_s,
            foreseen.tpot_s / tpot_slo_s,
            chance_of(odds[_TTFT, i]),
            chance_of(odds[_TPOT, i]),
            prompt,
            least,
            token_s,
            ttft_slo_s,
            tpot_slo_s,
        )
        for k in range(len(terms)):
            features[i, COMPUTED[_FIRST_TERM + k]] = terms[k]
        features[i, MARGINAL_COST] = weighted(terms, TERM_WEIGHTS)
    sum_up(features, mask, pool, totals)


def sum_up(features: Float32, mask: Bools, pool: Float32, totals: Float64) -> None:
    """`pool_features` of one decision.

    Args:
        pool: (len(POOL_FEATURES),), to be filled.
        totals: (len(AVERAGED),), to sum up in.
    """
    for k in range(len(AVERAGED)):
        totals[k] = 0.0
    count = 0
    cheapest = quickest = np.float32(np.inf)
    slowest = match = np.float32(0.0)
    for i in range(len(mask)):
        if mask[i]:
            row = features[i]
            count += 1
            for k in range(len(AVERAGED)):
                totals[k] += row[AVERAGED[k]]
            cheapest = np.minimum(cheapest, row[MARGINAL_COST])
            quickest = np.minimum(quickest, row[PREFILL_TOKEN_S])
            slowest = np.maximum(slowest, row[PREFILL_TOKEN_S])
            match = np.maximum(match, row[MATCH_FRACTION])
    pool[0] = count
    for k in range(len(AVERAGED)):
        pool[1 + k] = totals[k] / max(count, 1)
    pool[6] = cheapest if count else 0.0
    pool[7] = speed_ratio(float(quickest), float(slowest)) if count else 1.0
    pool[8] = match


def unloaded_pass(state: Float64, prompt_tokens: Number, unloaded_s: Float64) -> None:
    """`unloaded_ttft_s` of one prompt.

    Args:
        unloaded_s: (n,), to be filled.
    """
    for i in range(len(state)):
        unloaded_s[i] = unloaded_of(state[i], prompt_tokens)
