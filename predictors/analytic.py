"""Analytic cost estimates from the hardware profile (SPEC A3) and the marginal cost (DESIGN).

Plain numpy formulas over state rows (`predictors/ledger.py`), broadcasting over any leading
dimensions. `predictors/compile.py` makes machine code of the same functions, for the router and for
batches of simulated clusters, one replica at a time: what is an array here is a number there. So
whatever reaches across replicas, and every power and exponential (of which numpy has its own), is left
to the callers of `load_of`, `foresee` and `terms_of`.

The marginal cost of sending a request to a replica is what it changes in the cluster's cost J
(EVALUATION: latency over SLO, and 2 for a miss): its own TTFT and TPOT there and the chance that they
miss, what it inflicts on the requests already there, and a congestion term for those still to come::

    TTFT / TTFT_SLO + TPOT / TPOT_SLO + P(miss)
        + n (prefill stall + output * slower step) / (typical output * TPOT_SLO), and their P(miss)
        + arrivals per second * own prefill * (prefill queue + own prefill / 2) / TTFT_SLO
        + best match in the pool * cost of computing what is not cached here
        + tokens written there * chance that what they displace is asked for * time to compute a token
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L
from steersman.predictors.load import Array, Columns, Load, columns_of

# One decision is a hundred operations on a few numbers each: what they cost is the calls. So numbers
# that many of them take are arrays without dimensions, which numpy is quicker to accept than Python's,
# and `np.where`, `np.clip`, `np.stack` and sums, which take as long as three to ten of the others, are
# avoided.
_ZERO, _HALF, _ONE, _TWO = np.array(0.0), np.array(0.5), np.array(1.0), np.array(2.0)
_FAR = np.array(1e9)

MISS_WEIGHT = 0.23
"""Weight of the chance that this request misses, in units of J. By J's definition it would be 2, but
near a service level the prediction is least sure, and what is gained there is paid elsewhere."""
INFLICTED_WEIGHT = 1.45
"""Weight of the delay inflicted on others in the marginal cost."""
TIPPING_WEIGHT = 0.68
"""Weight of the misses inflicted on others."""
CONGESTION_WEIGHT = 1.5
"""Weight of the congestion term in the marginal cost."""
REUSE_WEIGHT = 2.7
"""Weight of computing what is cached elsewhere."""
EVICTION_WEIGHT = 50.0
"""Weight of what is displaced from the prefix cache. By its definition it would be 1, but what has to be
computed anew displaces other prefixes in turn, and delays everybody. It lies between the two that did
best, of a few, on the tuning parts of `prefix`, `agents` and `long`: 35 and 70.

The other five were found together, before there was this one, on the tuning parts of the nine standard
scenarios: 3.7 % less J there than with 2, 1, 0.5, 1.5 and 2."""
TERM_WEIGHTS = (
    1.0,
    1.0,
    MISS_WEIGHT,
    INFLICTED_WEIGHT,
    TIPPING_WEIGHT,
    CONGESTION_WEIGHT,
    REUSE_WEIGHT,
    EVICTION_WEIGHT,
)
"""In the order of `Terms`."""
_TERM_WEIGHTS = tuple(np.array(weight) for weight in TERM_WEIGHTS)
MISS_COST = 2.0
"""Cost of a missed service level in J."""
RETURN_S = 60.0
"""Age at which a prefix that nobody has asked for is half as likely to be asked for again."""
LEAST_LEFT = 0.1
"""Share of the KV memory that prefixes are taken to have, at least."""
TTFT_SPREAD = 0.3
TPOT_SPREAD = 0.12
"""Logistic scale of log(actual / predicted): how sure a prediction is."""
_RETURN_S, _LEAST_LEFT = np.array(RETURN_S), np.array(LEAST_LEFT)
_MISS_COST, _TPOT_SPREAD = np.array(MISS_COST), np.array(TPOT_SPREAD)


class Terms(NamedTuple):
    """What the marginal cost is the weighted sum of. Each field: (..., n), without dimension."""

    ttft_share: Array
    """TTFT over its objective."""
    tpot_share: Array
    miss_chance: Array
    """That this request misses an objective."""
    inflicted_share: Array
    """Delay of the requests already there, over the time their answers may take."""
    tipping_share: Array
    """That delay times what it adds to the cost of their misses."""
    congestion_share: Array
    """Delay of the first token of those still to come, over its objective."""
    reuse_share: Array
    """What computing here costs that is cached elsewhere, where as likely somebody asks for it again."""
    eviction_share: Array
    """Time to compute what is displaced from the prefix cache and will be asked for, over the objective
    of a first token."""


class Foreseen(NamedTuple):
    """What one request would meet on each candidate. Each field: (..., n), seconds but the last."""

    raw_ttft_s: Array
    """Without bias correction: what the corrector compares outcomes with."""
    raw_tpot_s: Array
    ttft_s: Array
    tpot_s: Array
    inflicted_s: Array
    """Delay summed over the requests already there."""
    congestion_s: Array
    """Delay of the first token summed over the requests still to come."""
    own_prefill_s: Array
    own_stall_s: Array
    """By how much its prefill lengthens the iterations of the others."""
    typical_output: Array
    """Tokens of an answer there, at least 1."""
    displaced_tokens: Array
    """Tokens in the prefix cache that this request displaces and somebody will ask for."""


class Estimate(NamedTuple):
    """What a request would cost on each candidate. Each field: (..., n), seconds, but the last two; the
    first six as in `Foreseen`."""

    raw_ttft_s: Array
    raw_tpot_s: Array
    ttft_s: Array
    tpot_s: Array
    inflicted_s: Array
    congestion_s: Array
    terms: Terms
    marginal_cost: Array
    """In units of J, without dimension."""


def estimate(
    columns: Columns,
    load: Load,
    prompt_tokens: Array,
    uncached_tokens: Array,
    output_p50: Array,
    output_mean: Array,
    ttft_slo_s: Array,
    tpot_slo_s: Array,
    cache_age_s: Array,
) -> Estimate:
    """Cost of one request on every candidate.

    Args:
        columns: `columns_of` the state.
        load: `load_of(columns)`.
        prompt_tokens, output_p50, output_mean, ttft_slo_s, tpot_slo_s: (..., 1), or () for one request.
        uncached_tokens: (..., n).
        cache_age_s: (..., n), of `load.py`.
    """
    foreseen = foresee(
        columns,
        load,
        np.exp(columns[L.LOG_BIAS_TTFT]),
        np.exp(columns[L.LOG_BIAS_TPOT]),
        prompt_tokens,
        uncached_tokens,
        output_p50,
        output_mean,
        cache_age_s,
    )
    ttft_share, tpot_share = foreseen.ttft_s / ttft_slo_s, foreseen.tpot_s / tpot_slo_s
    terms = terms_of(
        foreseen,
        load.queue,
        ttft_share,
        tpot_share,
        chance_met(ttft_share, TTFT_SPREAD),
        chance_met(tpot_share, TPOT_SPREAD),
        prompt_tokens,
        np.minimum.reduce(uncached_tokens, axis=-1, keepdims=True),
        np.minimum.reduce(columns[L.PREFILL_TOKEN_S], axis=-1, keepdims=True),
        ttft_slo_s,
        tpot_slo_s,
    )
    return Estimate(
        foreseen.raw_ttft_s,
        foreseen.raw_tpot_s,
        foreseen.ttft_s,
        foreseen.tpot_s,
        foreseen.inflicted_s,
        foreseen.congestion_s,
        terms,
        weighted(terms, _TERM_WEIGHTS),
    )


def foresee(
    columns: Columns,
    load: Load,
    ttft_bias: Array,
    tpot_bias: Array,
    prompt_tokens: Array,
    uncached_tokens: Array,
    output_p50: Array,
    output_mean: Array,
    cache_age_s: Array,
) -> Foreseen:
    """What one request would meet on every candidate, and do to the others there.

    A replica with n requests is taken to be in a steady state: whoever leaves is replaced by another of
    the same kind. So every request there meets n / (mean output) prefills per token it produces, and
    whatever this request adds to an iteration delays n others for its whole stay.

    Args:
        ttft_bias, tpot_bias: (..., n), by which factor outcomes exceed the estimates.
        columns, load, prompt_tokens, uncached_tokens, output_p50, output_mean, cache_age_s: see
            `estimate`.
    """
    inflight = columns[L.INFLIGHT]
    prefilling = columns[L.INFLIGHT_PREFILL]
    queue = load.queue
    is_idle = inflight <= _ZERO
    # The ledger sums medians; this request's mean over median says how much longer the mean is.
    typical_output = columns[L.OUTPUT_TOKENS] / load.sharers * (output_mean / output_p50)
    typical_output = np.maximum(_instead(typical_output, output_mean, is_idle), _ONE)

    decoding = np.maximum(load.running - prefilling, _ZERO)
    decode_s = _decode_iteration_s(columns, decoding, load.context_tokens)
    # Three prefills: the queue's, its own, and that of whoever comes next.
    typical_prompt = _instead(+load.mean_prompt, prompt_tokens, is_idle)
    stalls_s, chunks = _prefills(
        columns,
        (load.prefill_tokens, uncached_tokens, typical_prompt),
        (
            load.prefill_tokens / np.maximum(prefilling, _ONE),
            _TWO * prompt_tokens - uncached_tokens,
            typical_prompt,
        ),
    )
    queue_s = stalls_s[0] + chunks[0] * decode_s
    own_prefill_s = stalls_s[1] + chunks[1] * decode_s
    own_stall_s = stalls_s[1]
    stall_s = decoding * stalls_s[2] / typical_output
    slower_s = columns[L.DECODE_SEQ_S] + columns[L.DECODE_CONTEXT_S] * (
        prompt_tokens + _HALF * output_mean
    )
    token_s = decode_s + stall_s
    answer_s = typical_output * token_s
    # While it waits for a slot or for memory, the prefills before it are done beside the decoding.
    leaves_s = answer_s / np.maximum(load.running, _ONE)
    admission_s = _requests_short(columns, load, prompt_tokens) * leaves_s
    wait_s = np.maximum(queue_s, admission_s)
    raw_ttft_s = _HALF * decode_s * (decoding > _ZERO) + wait_s + own_prefill_s
    raw_tpot_s = token_s + slower_s
    # Arrivals (by Little's law) while it waits or is prefilled wait for its prefill, or for its slot.
    arrivals_per_s = queue / answer_s
    taken_s = np.maximum(own_prefill_s, leaves_s * (admission_s > queue_s))
    # Who comes back does so within a minute or two: what nobody asked for in that time is no loss. And
    # the less memory running requests leave to prefixes, the more of them a token displaces.
    overdue = cache_age_s / _RETURN_S
    displaced_tokens = (
        columns[L.MATCHED_SHARE]
        * (uncached_tokens + output_mean)
        / np.maximum(_ONE - load.kv_usage, _LEAST_LEFT)
        / (_ONE + overdue * overdue)
    )
    return Foreseen(
        raw_ttft_s,
        raw_tpot_s,
        raw_ttft_s * ttft_bias,
        raw_tpot_s * tpot_bias,
        queue * (own_stall_s + output_mean * slower_s),
        arrivals_per_s * taken_s * (wait_s + _HALF * taken_s),
        own_prefill_s,
        own_stall_s,
        typical_output,
        displaced_tokens,
    )


def terms_of(
    foreseen: Foreseen,
    queue: Array,
    ttft_share: Array,
    tpot_share: Array,
    ttft_met: Array,
    tpot_met: Array,
    prompt_tokens: Array,
    least_uncached: Array,
    least_token_s: Array,
    ttft_slo_s: Array,
    tpot_slo_s: Array,
) -> Terms:
    """Terms of the marginal cost.

    Args:
        queue: of the `Load`.
        ttft_share, tpot_share: (..., n), what is foreseen over its objective.
        ttft_met, tpot_met: (..., n), `chance_met` of these.
        least_uncached: tokens to compute where most of the prompt is cached; like the rest, (..., 1) or
            () for one request.
        least_token_s: time to compute a prompt's token where that is quickest.
    """
    # What is computed anew takes the place of other prefixes in the cache, as likely to be asked for
    # again as this prompt was to be found: somebody else will have to compute them.
    shared = _ONE - least_uncached / np.maximum(prompt_tokens, _ONE)
    answer_slo_s = foreseen.typical_output * tpot_slo_s
    computed = foreseen.own_prefill_s / ttft_slo_s + queue * foreseen.own_stall_s / answer_slo_s
    # The others' chance to miss grows fastest near the objective, and no more once all is lost: so
    # in overload some replicas are given up rather than all.
    tipping = _MISS_COST * tpot_met * (_ONE - tpot_met) / _TPOT_SPREAD * tpot_slo_s / foreseen.tpot_s
    inflicted_share = foreseen.inflicted_s / answer_slo_s
    return Terms(
        ttft_share,
        tpot_share,
        _ONE - ttft_met * tpot_met,
        inflicted_share,
        tipping * inflicted_share,
        foreseen.congestion_s / ttft_slo_s,
        shared * computed,
        foreseen.displaced_tokens * least_token_s / ttft_slo_s,
    )


def weighted(terms: Sequence[Array], weights: Sequence[Any] = TERM_WEIGHTS) -> Array:
    """The marginal cost, (..., n): the sum of its terms.

    Args:
        terms: in the order of `Terms`, (..., n) each.
        weights: of each, a number or an array that broadcasts against it.
    """
    # One by one, not as a matrix product: one decision and a batch of them must come out the same.
    total: Array = terms[0] * weights[0]
    for i in range(1, len(TERM_WEIGHTS)):
        total = total + terms[i] * weights[i]
    return total


def mean_output(output_p50: Array, output_p90: Array) -> Array:
    """Mean of the log-normal distribution that has these two quantiles; at most three times p50.

    Output lengths of chat and API traffic are close to log-normal. z(0.9) = 1.2816.
    """
    p50 = np.maximum(output_p50, 1.0)
    sigma = np.log(np.maximum(output_p90 / p50, 1.0)) / 1.2816
    # A product, not a power: one number and an array of them must come out the same.
    return p50 * np.minimum(np.exp(0.5 * (sigma * sigma)), 3.0)


def unloaded_ttft_s(state: Array, prompt_tokens: Array) -> Array:
    """TTFT of an uncached prompt on an idle replica, (..., n)."""
    return unloaded_of(columns_of(state), prompt_tokens)


def unloaded_of(columns: Columns, prompt_tokens: Array) -> Array:
    """The same, of columns."""
    stall_s, chunks = prefill(columns, prompt_tokens, prompt_tokens)
    return stall_s + chunks * (columns[L.HOST_OVERHEAD_S] + columns[L.DECODE_BASE_S])


def prefill_s(state: Array, tokens: Array, reach: Array, decode_s: Array) -> Array:
    """Time to prefill `tokens` in chunks, each iteration also paying for what decodes beside it.

    Args:
        tokens: (..., n) new prompt tokens.
        reach: (..., n) or (..., 1), tokens that each attends to, twice the mean: the quadratic term
            is `tokens * reach`. For p new tokens after q cached ones that is p + 2 q.
        decode_s: (..., n), an iteration without any prefill.
    """
    stall_s, chunks = prefill(columns_of(state), tokens, reach)
    return stall_s + chunks * decode_s


def prefill(columns: Columns, tokens: Array, reach: Array) -> tuple[Array, Array]:
    """By how much a prefill lengthens the iterations that carry it, and how many these are."""
    fraction = tokens / columns[L.MAX_BATCHED_TOKENS]
    chunks = np.maximum(fraction, _ONE) * (tokens > _ZERO)
    compute_s = chunks * (columns[L.PREFILL_BASE_S] - columns[L.DECODE_BASE_S]) + tokens * (
        columns[L.PREFILL_TOKEN_S] + reach * columns[L.PREFILL_TOKEN2_S]
    )
    return np.maximum(compute_s, _ZERO), chunks


def _prefills(
    columns: Columns, tokens: tuple[Array, ...], reach: tuple[Array, ...]
) -> tuple[Array, Array]:
    """`prefill` of several (a stack of arrays takes hardly longer than one)."""
    stacked = np.empty((2, len(tokens), *tokens[0].shape))
    for i in range(len(tokens)):
        stacked[0, i] = tokens[i]
        stacked[1, i] = reach[i]
    return prefill(columns, stacked[0], stacked[1])


def _instead(values: Array, others: Array, where: NDArray[np.bool_]) -> Array:
    """`values`, which nobody else needs, with the others where the condition holds."""
    np.copyto(values, others, where=where)
    return values


def chance_met(over_slo: Array, spread: float) -> Array:
    """Chance that a time stays within its objective, logistic in the log of the prediction over it."""
    return chance_of(bounded(over_slo) ** (1.0 / spread))


def bounded(over_slo: Array) -> Array:
    """What `chance_met` takes the power of."""
    least: Array = np.minimum(over_slo, _FAR)
    return least


def chance_of(odds: Array) -> Array:
    """What `chance_met` makes of the power: the odds against."""
    chance: Array = _ONE / (_ONE + odds)
    return chance


def _decode_iteration_s(columns: Columns, sequences: Array, context_tokens: Array) -> Array:
    return (
        columns[L.HOST_OVERHEAD_S]
        + columns[L.DECODE_BASE_S]
        + columns[L.DECODE_SEQ_S] * sequences
        + columns[L.DECODE_CONTEXT_S] * context_tokens
    )


def _requests_short(columns: Columns, load: Load, prompt_tokens: Array) -> Array:
    """How many requests must end before there is a batch slot and KV memory for one more."""
    slots_short = np.maximum(load.queue + _ONE - columns[L.MAX_NUM_SEQS], _ZERO)
    capacity = columns[L.KV_CAPACITY_TOKENS]
    held = load.kv_usage * capacity
    tokens_short = np.maximum(held + prompt_tokens - capacity, _ZERO)
    tokens_per_request = np.maximum(held / np.maximum(load.queue, _ONE), _ONE)
    short: Array = np.maximum(slots_short, tokens_short / tokens_per_request)
    return short
