from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.profiles import load_profile
from steersman.predictors import analytic
from steersman.predictors import ledger as L
from steersman.predictors.load import MAX_CACHE_AGE_S, cache_age_s, columns_of, load_now
from steersman.traces.scenario import ReplicaSpec
from steersman.traces.schema import HardwareProfile, Request
from steersman.traces.trace import Trace

Float64 = NDArray[np.float64]
PROFILES = ("h100-llama-3.1-8b", "a100-llama-3.1-8b", "l40s-llama-3.1-8b")
A100 = load_profile("a100-llama-3.1-8b")


def row(profile: HardwareProfile = A100, *, decoding: int = 0, prefilling: int = 0) -> Float64:
    """A replica with 1000-token prompts and 200-token answers in flight, just scraped."""
    state = L.new_row(profile)
    for i in range(decoding + prefilling):
        L.on_dispatch(state, 1000.0, 1000.0, 200.0)
        if i < decoding:
            state[L.INFLIGHT_PREFILL] -= 1.0
            state[L.PREFILL_TOKENS] -= 1000.0
    L.on_scrape(state, 0.0, decoding + prefilling, 0.0, decoding * 1100.0 / profile.kv_capacity_tokens)
    return state


def estimate(
    *rows: Float64,
    prompt: float = 1000.0,
    cached: float | Float64 = 0.0,
    output: float = 200.0,
    mean: float | None = None,
    now_s: float = 0.0,
) -> analytic.Estimate:
    state = np.stack(rows)
    one = np.ones(1)
    return analytic.estimate(
        columns_of(state),
        load_now(state),
        one * prompt,
        np.full(len(rows), prompt) - cached,
        one * output,
        one * (output if mean is None else mean),
        one * 1.0,
        one * 0.05,
        cache_age_s(columns_of(state), one * now_s),
    )


@pytest.mark.parametrize("name", PROFILES)
@pytest.mark.parametrize("prompt", [50, 1000, 10_000])
def test_an_idle_replica_is_as_fast_as_the_engine_says(name: str, prompt: int) -> None:
    spec = ReplicaSpec("r", load_profile(name))
    request = Request("a", 0.0, input_tokens=prompt, output_tokens=100)
    cluster = Cluster([spec], Trace.from_requests("one", [request]))
    cluster.next_request()
    cluster.dispatch(0)
    cluster.finish()
    outcome = cluster.outcomes().outcome(0)
    state = L.new_row(spec.profile)
    unloaded = analytic.unloaded_ttft_s(state[None], np.full(1, float(prompt)))[0]
    assert unloaded == pytest.approx(outcome.ttft_s, rel=0.05)
    cost = estimate(state, prompt=float(prompt), output=100.0)
    assert cost.raw_ttft_s[0] == pytest.approx(outcome.ttft_s, rel=0.05)
    assert cost.raw_tpot_s[0] == pytest.approx(outcome.tpot_s, rel=0.05)


def test_a_steady_replica_decodes_about_as_fast_as_the_engine() -> None:
    # Requests of one kind at a steady rate: what the estimate assumes.
    n, rate = 600, 6.0
    requests = [Request(str(i), i / rate, input_tokens=1000, output_tokens=200) for i in range(n)]
    cluster = Cluster(
        [ReplicaSpec("r", A100)],
        Trace.from_requests("steady", requests),
        output_quantiles=np.full((n, 2), 200.0),
    )
    predicted = []
    while cluster.next_request() is not None:
        seen = cluster.observe()
        load = load_now(cluster.state)
        one = np.ones(1)
        columns = columns_of(cluster.state)
        age_s = cache_age_s(columns, one * cluster.now_s)
        cost = analytic.estimate(
            columns, load, one * 1000, one * 1000, one * 200, one * 200, one, one * 0.05, age_s
        )
        predicted.append((cost.raw_ttft_s[0], cost.raw_tpot_s[0]))
        assert seen.mask.all()
        cluster.dispatch(0)
    cluster.finish()
    outcomes = cluster.outcomes()
    middle = slice(200, 550)
    ttft_s, tpot_s = np.array(predicted)[middle].mean(axis=0)
    assert ttft_s == pytest.approx(outcomes.ttft_s[middle].mean(), rel=0.15)
    assert tpot_s == pytest.approx(outcomes.tpot_s[middle].mean(), rel=0.15)


def test_prefill_is_quadratic_in_the_prompt_and_linear_in_what_is_cached() -> None:
    state = row()[None]
    decode_s = np.full(1, 0.02)

    def seconds(new: float, cached: float) -> float:
        tokens = np.full(1, new)
        return float(analytic.prefill_s(state, tokens, tokens + 2 * cached, decode_s)[0])

    # 4000 tokens cut in two cost the same compute as at once: the second half attends to the first.
    assert seconds(2000, 0) + seconds(2000, 2000) == pytest.approx(seconds(4000, 0), rel=0.02)
    assert seconds(0, 0) == 0.0


def test_mean_output_is_that_of_the_log_normal() -> None:
    rng = np.random.default_rng(0)
    drawn = rng.lognormal(5.0, 0.8, 400_000)
    p50, p90 = np.quantile(drawn, (0.5, 0.9))
    assert analytic.mean_output(p50, p90) == pytest.approx(drawn.mean(), rel=0.02)
    assert analytic.mean_output(np.array(100.0), np.array(100.0)) == pytest.approx(100.0)
    assert analytic.mean_output(np.array(1.0), np.array(1e9)) == pytest.approx(3.0)


def test_marginal_cost_grows_with_the_load() -> None:
    costs = estimate(*(row(decoding=d) for d in (0, 8, 32, 128))).marginal_cost
    assert np.all(np.diff(costs) > 0)
    costs = estimate(*(row(decoding=8, prefilling=p) for p in (0, 1, 4, 16))).marginal_cost
    assert np.all(np.diff(costs) > 0)


def test_a_faster_replica_costs_less_and_so_does_a_cached_prompt() -> None:
    costs = estimate(*(row(load_profile(name), decoding=16) for name in PROFILES)).marginal_cost
    assert costs[0] < costs[1] < costs[2]
    half, none = 0, 1
    cost = estimate(row(decoding=16), row(decoding=16), cached=np.array([500.0, 0.0]))
    assert cost.marginal_cost[half] < cost.marginal_cost[none]
    assert cost.ttft_s[half] < cost.ttft_s[none]
    assert cost.inflicted_s[half] < cost.inflicted_s[none]


def test_an_uncached_replica_costs_more_where_another_holds_the_prompt() -> None:
    rows = (row(decoding=8), row(decoding=8))

    def cost_of_the_first(cached_on_the_second: float) -> float:
        cached = np.array([0.0, cached_on_the_second])
        return float(estimate(*rows, cached=cached).marginal_cost[0])

    # The first replica has nothing of it either way; computing it there would evict something.
    assert cost_of_the_first(900.0) > cost_of_the_first(0.0)


def test_nobody_there_means_nobody_is_delayed() -> None:
    cost = estimate(row())
    assert (cost.inflicted_s[0], cost.congestion_s[0]) == (0.0, 0.0)


def test_the_delay_inflicted_is_one_stall_and_a_slower_step_for_each() -> None:
    cost = estimate(row(decoding=10))
    slower_s = A100.decode_seq_s + A100.decode_context_s * 1100.0
    stall_s = (
        A100.prefill_base_s
        + 1000 * A100.prefill_token_s
        + 1000**2 * A100.prefill_token2_s
        - A100.decode_base_s
    )
    assert cost.inflicted_s[0] == pytest.approx(10 * (stall_s + 200 * slower_s))


def test_the_bias_corrector_moves_the_estimates_and_not_the_raw_ones() -> None:
    plain, slow = row(decoding=8), row(decoding=8)
    slow[L.LOG_BIAS_TTFT] = slow[L.LOG_BIAS_TPOT] = np.log(2.0)
    cost = estimate(plain, slow)
    assert cost.raw_ttft_s[0] == cost.raw_ttft_s[1]
    assert cost.ttft_s[1] == pytest.approx(2 * cost.ttft_s[0])
    assert cost.tpot_s[1] == pytest.approx(2 * cost.tpot_s[0])
    assert cost.marginal_cost[1] > cost.marginal_cost[0]


def test_a_full_replica_makes_a_request_wait_for_a_slot_or_for_memory() -> None:
    full = row(replace(A100, max_num_seqs=16), decoding=16)
    free = row(decoding=16)
    packed = row(replace(A100, kv_capacity_tokens=17_600), decoding=16)
    ttft_s = estimate(free, full, packed).ttft_s
    assert ttft_s[1] > 2 * ttft_s[0]
    assert ttft_s[2] > 2 * ttft_s[0]


@given(
    decoding=st.lists(st.integers(0, 600), min_size=1, max_size=6),
    prompt=st.floats(1.0, 120_000.0),
    cached_share=st.floats(0.0, 1.0),
    output=st.floats(1.0, 10_000.0),
    spread=st.floats(1.0, 20.0),
)
@settings(max_examples=60, deadline=None)
def test_estimates_are_finite_and_the_same_one_by_one_or_in_batches(
    decoding: list[int], prompt: float, cached_share: float, output: float, spread: float
) -> None:
    rows = [row(decoding=d % 80, prefilling=d // 80) for d in decoding]
    cached = cached_share * (prompt - 1.0)
    together = estimate(*rows, prompt=prompt, cached=cached, output=output, mean=output * spread)
    *estimates, terms, cost = together
    for field in (*estimates, *terms, cost):
        assert np.isfinite(field).all()
        assert (field >= 0).all()
    for i, one in enumerate(rows):
        alone = estimate(one, prompt=prompt, cached=cached, output=output, mean=output * spread)
        np.testing.assert_allclose(alone.marginal_cost[0], together.marginal_cost[i])


def test_dead_reckoning_counts_own_requests_before_the_first_scrape() -> None:
    state = L.new_row(A100)
    for _ in range(3):
        L.on_dispatch(state, 1000.0, 1000.0, 200.0)
    load = load_now(state[None])
    assert (load.queue[0], load.running[0], load.waiting[0]) == (3.0, 3.0, 0.0)
    assert load.prefill_tokens[0] == 3000.0


def test_dead_reckoning_carries_on_from_the_last_scrape() -> None:
    state = row(decoding=4)
    L.on_scrape(state, 1.0, 10.0, 2.0, 0.5)  # other routers' requests too
    L.on_dispatch(state, 1000.0, 1000.0, 200.0)
    load = load_now(state[None])
    assert (load.queue[0], load.waiting[0]) == (13.0, 2.0)
    assert load.kv_usage[0] == pytest.approx(0.5 + 1000.0 / A100.kv_capacity_tokens)
    L.on_finish(state, 1000.0, 200.0, 200.0, 5.0, 0.02, 0.02)
    assert load_now(state[None]).queue[0] == 12.0


def cached_row(oldest_s: float, matched_share: float, kv_usage: float) -> Float64:
    """A replica whose prefix cache would next give up what was last used at `oldest_s`."""
    state = row()
    L.on_scrape(state, 0.0, 0.0, 0.0, kv_usage)
    state[L.CACHE_OLDEST_S] = oldest_s
    state[L.MATCHED_SHARE] = matched_share
    return state


def test_a_cache_with_room_loses_nothing() -> None:
    states = cached_row(-np.inf, 0.8, 0.5), cached_row(90.0, 0.8, 0.5)
    ages_s = cache_age_s(columns_of(np.stack(states)), np.full(1, 100.0))
    assert ages_s.tolist() == [MAX_CACHE_AGE_S, 10.0]
    shares = estimate(*states, now_s=100.0).terms.eviction_share
    assert shares[0] < 1e-3 * shares[1]


def test_what_is_displaced_is_priced_by_how_likely_it_is_asked_for() -> None:
    # At an age of RETURN_S every second token will be asked for, of the share that ever is.
    state = cached_row(100.0, 0.8, 0.5)
    share = estimate(state, prompt=1000.0, cached=400.0, output=200.0, now_s=100.0 + analytic.RETURN_S)
    expected = 0.8 * (600.0 + 200.0) / 0.5 / 2.0 * A100.prefill_token_s
    assert share.terms.eviction_share[0] == pytest.approx(expected)


def test_traffic_that_shares_nothing_displaces_nothing_of_worth() -> None:
    state = cached_row(90.0, 0.0, 0.9)
    assert estimate(state, now_s=100.0).terms.eviction_share[0] == 0.0


@given(
    age_s=st.floats(0.0, 1000.0),
    older=st.floats(0.0, 1000.0),
    shares=st.tuples(st.floats(0.0, 1.0), st.floats(0.0, 1.0)),
)
def test_younger_caches_and_more_reuse_make_it_dearer(
    age_s: float, older: float, shares: tuple[float, float]
) -> None:
    low, high = sorted(shares)
    young, old = cached_row(-age_s, low, 0.5), cached_row(-age_s - older, low, 0.5)
    reused = cached_row(-age_s, high, 0.5)
    dear = estimate(young, old, reused).terms.eviction_share
    assert dear[2] >= dear[0] >= dear[1]
