"""The online bias corrector: what it learns, how fast, and what must not teach it anything."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L

A100, H100 = (load_profile(f"{gpu}-llama-3.1-8b") for gpu in ("a100", "h100"))
LEARNED = [L.MEAN_TTFT_S, L.MEAN_TPOT_S, L.MEAN_E2E_S, L.LOG_BIAS_TTFT, L.LOG_BIAS_TPOT]
ESTIMATED_TTFT_S, ESTIMATED_TPOT_S = 0.2, 0.02


def serve(row: L.Row, factor: float = 1.0, times: int = 1) -> None:
    """Requests that take so many times what was estimated."""
    for _ in range(times):
        L.on_dispatch(row, 100.0, 100.0, 50.0)
        L.on_first_token(row, 100.0, factor * ESTIMATED_TTFT_S, ESTIMATED_TTFT_S)
        tpot_s = factor * ESTIMATED_TPOT_S
        L.on_finish(
            row, 100.0, 50.0, 40.0, factor * ESTIMATED_TTFT_S + 39 * tpot_s, tpot_s, ESTIMATED_TPOT_S
        )


@pytest.mark.parametrize("factor", [1.4, 1 / 1.4, 3.0])
def test_the_bias_follows_a_change_of_speed(factor: float) -> None:
    row = L.new_row(A100)
    serve(row, 1.0, 20)
    serve(row, factor, 100)
    assert row[L.LOG_BIAS_TTFT] == pytest.approx(math.log(factor), abs=0.02)
    assert row[L.LOG_BIAS_TPOT] == pytest.approx(math.log(factor), abs=0.02)


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.floats(-L.BIAS_LIMIT, L.BIAS_LIMIT))
def test_no_outcome_moves_the_bias_far(actual_s: float, estimated_s: float, before: float) -> None:
    row = L.new_row(A100)
    row[L.LOG_BIAS_TTFT] = before
    L.on_first_token(row, 0.0, actual_s, estimated_s)
    assert abs(row[L.LOG_BIAS_TTFT] - before) <= L.BIAS_SMOOTHING * L.BIAS_STEP + 1e-12
    assert abs(row[L.LOG_BIAS_TTFT]) <= L.BIAS_LIMIT


@given(st.integers(0, 5), st.booleans())
def test_requests_that_fail_teach_nothing(lost: int, had_first_token: bool) -> None:
    row = L.new_row(A100)
    serve(row, 1.3, 30)
    before = row.copy()
    for _ in range(lost):
        L.on_dispatch(row, 100.0, 100.0, 50.0)
        if had_first_token:  # seen by nobody
            L.on_first_token(row, 100.0, 5.0, 0.0)
        L.on_abort(row, 100.0, 100.0, 50.0, 7.0, had_first_token)
    assert np.array_equal(row[LEARNED], before[LEARNED])


def test_a_first_token_that_was_seen_counts_whatever_becomes_of_the_request() -> None:
    """Else only those who waited patiently would be believed."""
    row = L.new_row(A100)
    L.on_dispatch(row, 100.0, 100.0, 50.0)
    L.on_first_token(row, 100.0, 2.0, 1.0)
    learned = row[LEARNED].copy()
    L.on_abort(row, 100.0, 100.0, 50.0, 7.0, True)
    assert learned[3] > 0.0
    assert np.array_equal(row[LEARNED], learned)


def test_a_replica_that_comes_back_is_cold_at_first() -> None:
    state = np.stack([L.new_row(A100)])
    serve(state[0], 1.2, 50)
    before = state[0, LEARNED].copy()
    L.on_health(state, 0, False)
    L.on_health(state, 0, True)
    assert L.is_cold(state[0])
    serve(state[0], 30.0, int(L.COLD_OUTCOMES))
    assert np.array_equal(state[0, LEARNED], before)
    assert not L.is_cold(state[0])
    serve(state[0], 1.3)
    assert not np.array_equal(state[0, LEARNED], before)


def test_being_told_again_that_it_is_well_changes_nothing() -> None:
    state = np.stack([L.new_row(A100)])
    before = state.copy()
    L.on_health(state, 0, True)
    assert np.array_equal(state, before)


def test_a_new_replica_believes_its_peers_of_the_same_hardware_and_model() -> None:
    state = np.stack([L.new_row(profile) for profile in (A100, H100, A100, A100, A100)])
    for row, factor in ((0, 1.5), (1, 0.5), (2, 1.3)):
        serve(state[row], factor, 200)
    L.on_health(state, 3, False)
    L.on_health(state, 3, True)
    expected = np.mean(state[[0, 2], L.LOG_BIAS_TPOT])
    assert state[3, L.LOG_BIAS_TPOT] == pytest.approx(expected)
    L.on_health(state, 1, False)
    L.on_health(state, 1, True)
    assert state[1, L.LOG_BIAS_TPOT] == pytest.approx(math.log(0.5), abs=0.02), "its own is better"
    assert state[4, L.LOG_BIAS_TPOT] == 0.0


def test_the_share_of_prompts_that_were_cached_is_a_running_mean() -> None:
    state = L.new_row(A100)
    for _ in range(400):
        L.on_dispatch(state, 1000.0, 250.0, 50.0)
    assert state[L.MATCHED_SHARE] == pytest.approx(0.75, rel=0.001)
    L.on_dispatch(state, 1000.0, 1000.0, 50.0)
    assert state[L.MATCHED_SHARE] == pytest.approx(0.75 * (1.0 - L.MATCH_SMOOTHING), rel=0.001)
    L.on_dispatch(state, 0.0, 0.0, 50.0)
    assert 0.0 < state[L.MATCHED_SHARE] < 1.0


def told(row: L.Row, queries: float, hits: float) -> float:
    """A scrape with these counters; the trust after it."""
    L.on_scrape(row, 1.0, 0.0, 0.0, 0.0, queries, hits)
    return float(row[L.CACHE_TRUST])


def test_a_cache_is_trusted_until_the_engine_tells_otherwise() -> None:
    state = L.new_row(A100)
    assert state[L.CACHE_TRUST] == 1.0
    for _ in range(100):
        L.on_lookup(state, 1000.0, 900.0)
    assert told(state, 0.0, 0.0) == 1.0, "it does not tell"


@pytest.mark.parametrize("routers", [1, 5])
def test_trust_is_the_share_of_what_is_believed_that_is_found(routers: int) -> None:
    """Of several routers each knows what it sent; the engine counts what all did."""
    state = L.new_row(A100)

    def serve_prompts(first: int, last: int, hit_tokens: float) -> float:
        for number in range(first, last):
            L.on_lookup(state, 1000.0, 900.0)
            told(state, routers * 1000.0 * number, routers * hit_tokens * number)
        return float(state[L.CACHE_TRUST])

    assert serve_prompts(1, 1000, 300.0) == pytest.approx(300.0 / 900.0, rel=0.1)
    assert serve_prompts(1000, 2000, 900.0) == 1.0, "what was long ago is forgotten"


def test_one_short_prompt_says_little_about_a_cache() -> None:
    state = L.new_row(A100)
    told(state, 1000.0, 500.0)
    L.on_lookup(state, 100.0, 100.0)
    assert 0.9 < told(state, 1100.0, 500.0) < 1.0


def test_what_an_engine_counted_before_anybody_looked_says_nothing() -> None:
    state = L.new_row(A100)
    L.on_scrape(state, 0.0, 0.0, 0.0, 0.0)
    L.on_lookup(state, 1000.0, 900.0)
    assert told(state, 1e9, 1e8) == 1.0
    for number in range(1, 100):
        L.on_lookup(state, 1000.0, 900.0)
        assert told(state, 1e9 + 1000.0 * number, 1e8 + 900.0 * number) > 0.99


def test_a_page_without_the_counters_changes_nothing() -> None:
    state = L.new_row(A100)
    told(state, 1e9, 1e8)
    for number in range(1, 1000):
        L.on_lookup(state, 1000.0, 900.0)
        before = told(state, 1e9 + 1000.0 * number, 1e8 + 300.0 * number)
    L.on_scrape(state, 1.0, 0.0, 0.0, 0.0)
    assert state[L.CACHE_TRUST] == before
    assert told(state, 1e9 + 1000.0 * number, 1e8 + 300.0 * number) == before


def test_an_engine_that_starts_again_counts_from_nothing() -> None:
    state = L.new_row(A100)
    for number in range(1, 200):
        L.on_lookup(state, 1000.0, 900.0)
        told(state, 1000.0 * number, 300.0 * number)
    before = state[L.CACHE_TRUST]
    assert told(state, 0.0, 0.0) == pytest.approx(before)
    for number in range(1, 1000):
        L.on_lookup(state, 1000.0, 900.0)
        told(state, 1000.0 * number, 900.0 * number)
    assert state[L.CACHE_TRUST] == pytest.approx(1.0, abs=0.001)


COUNTS = st.tuples(st.integers(1, 5000), st.integers(0, 5000), st.integers(0, 5000))


@given(st.lists(COUNTS, min_size=1, max_size=50))
def test_trust_stays_a_share_and_forgets_no_scrape(prompts: list[tuple[int, int, int]]) -> None:
    often, seldom = L.new_row(A100), L.new_row(A100)
    queries, hits = 10**6, 4 * 10**5
    for row in (often, seldom):
        told(row, queries, hits)
    for prompt, believed, hit in prompts:
        for row in (often, seldom):
            L.on_lookup(row, float(prompt), float(min(believed, prompt)))
        told(often, queries + prompt // 2, hits + min(hit, prompt // 2))
        queries, hits = queries + prompt, hits + min(hit, prompt)
        told(often, queries, hits)
        told(seldom, queries, hits)
        assert 0.0 < often[L.CACHE_TRUST] <= 1.0
        assert often[L.CACHE_TRUST] == seldom[L.CACHE_TRUST]
