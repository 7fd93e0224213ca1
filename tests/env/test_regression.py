"""The fit finds the costs that made the times, through noise, outliers and unknowns."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.env.iterations import cost_of, play_iterations, with_cost
from steersman.env.profiles import load_profile
from steersman.env.regression import GOOD_ENOUGH, Measured, distance, fit_cost
from steersman.traces.trace import Trace
from tests.env.worlds import request, trace_of


def _traffic(count: int, rate_rps: float, seed: int = 0) -> Trace:
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(1.0 / rate_rps, count))
    return trace_of(
        *(
            request(i, float(at_s[i]), int(rng.integers(50, 3000)), int(rng.integers(2, 300)))
            for i in range(count)
        )
    )


def test_the_fit_finds_the_costs_behind_noisy_times() -> None:
    start = load_profile("a100-llama-3.1-8b")
    truth = with_cost(start, cost_of(start) * np.array([0.6, 0.8, 2.0, 1.5, 0.5, 1.0]))
    trace = _traffic(200, 2.0)
    played = play_iterations(truth, trace)
    rng = np.random.default_rng(1)
    noise = 1.0 + 0.02 * rng.standard_normal((2, len(trace)))
    ttft_s, e2e_s = played.ttft_s * noise[0], played.e2e_s * noise[1]
    ttft_s[::20] *= 5.0  # stalls that the model knows nothing of
    ttft_s[3::20] = np.nan
    fit = fit_cost(
        lambda cost: play_iterations(with_cost(start, cost), trace),
        Measured(ttft_s, np.maximum(e2e_s, ttft_s)),
        cost_of(start),
    )
    again = play_iterations(with_cost(start, fit.cost), trace)
    assert np.median(again.e2e_s) == pytest.approx(np.median(played.e2e_s), rel=0.02)
    assert np.median(again.ttft_s) == pytest.approx(np.median(played.ttft_s), rel=0.03)
    assert fit.cost[0] == pytest.approx(cost_of(truth)[0], rel=0.1)
    assert fit.cost[4] == pytest.approx(cost_of(truth)[4], rel=0.15)


def test_costs_are_never_negative_and_the_best_round_is_kept() -> None:
    start = load_profile("a100-llama-3.1-8b")
    trace = _traffic(60, 1.0)
    played = play_iterations(start, trace)
    measured = Measured(played.ttft_s, played.e2e_s)
    fit = fit_cost(lambda cost: play_iterations(with_cost(start, cost), trace), measured, cost_of(start))
    assert (fit.cost >= 0.0).all()
    assert fit.error <= distance(played, measured) + 1e-12


def test_a_schedule_that_knows_nothing_is_infinitely_far() -> None:
    trace = _traffic(5, 1.0)
    played = play_iterations(load_profile("a100-llama-3.1-8b"), trace)
    unknown = np.full(len(trace), np.nan)
    assert distance(played, Measured(unknown, unknown)) == np.inf
    assert distance(replace(played, ttft_s=2.0 * played.ttft_s), Measured(played.ttft_s, unknown)) == (
        pytest.approx(1.0)
    )


def test_a_guess_far_too_slow_is_not_the_end() -> None:
    start = load_profile("a100-llama-3.1-8b")
    trace = _traffic(150, 6.0)
    played = play_iterations(start, trace)
    fit = fit_cost(
        lambda cost: play_iterations(with_cost(start, cost), trace),
        Measured(played.ttft_s, played.e2e_s),
        8.0 * cost_of(start),
    )
    assert fit.error < GOOD_ENOUGH
