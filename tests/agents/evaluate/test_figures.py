from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.evaluate.cost import Objectives
from steersman.agents.evaluate.figures import Ended, summarise

NAN = float("nan")


def ended() -> Ended:
    """Four requests: two fine on replica 0, one slow on 1, one failed on nobody; the third is P2."""
    return Ended(
        arrival_s=np.array([0.0, 1.0, 2.0, 3.0]),
        ended_well=np.array([True, True, True, False]),
        replica=np.array([0, 0, 1, -1]),
        ttft_s=np.array([0.5, 0.5, 3.0, NAN]),
        tpot_s=np.array([0.025, 0.025, 0.025, NAN]),
        e2e_s=np.array([1.0, 2.0, 6.0, NAN]),
        input_tokens=np.array([100, 100, 200, 100]),
        cached_tokens=np.array([50, 0, 0, 0]),
        preemptions=np.array([0, 0, 2, 0]),
        priority=np.array([0, 1, 2, 0], dtype=np.int8),
    )


def objectives() -> Objectives:
    return Objectives(np.ones(4), 0.05)


def test_the_figures_of_a_run() -> None:
    f = summarise(ended(), objectives(), replicas=3, window_s=10.0)
    costs = [1.0, 1.0, 5.5, 42.0]
    assert f.j1 == pytest.approx(np.mean(costs))
    assert f.j == pytest.approx((1.0 + 1.0 + 0.25 * 5.5 + 42.0) / 3.25)
    assert (f.requests, f.failed) == (4, 1)
    assert (f.slo_attainment, f.goodput_rps) == pytest.approx((0.5, 0.2))
    assert (f.ttft_p50_s, f.e2e_mean_s, f.tpot_p99_s) == pytest.approx((0.5, 3.0, 0.025))
    assert f.shares == pytest.approx((2 / 3, 1 / 3, 0.0))
    assert f.jain == pytest.approx(400**2 / (3 * (200**2 + 200**2)))
    assert f.max_over_mean == pytest.approx(1.5)
    assert f.prefix_hit_rate == pytest.approx(0.1)
    assert f.preemptions == 2


def test_only_the_measured_window_counts() -> None:
    inside = ended().arrived(1.0, 3.0)
    assert inside.arrival_s.tolist() == [1.0, 2.0]
    assert inside.priority.tolist() == [1, 2]


def test_a_run_in_which_nothing_ended_well_costs_42_and_has_no_times() -> None:
    broken = replace(ended(), ended_well=np.zeros(4, dtype=bool))
    f = summarise(broken, objectives(), replicas=2, window_s=10.0)
    assert (f.j, f.j1, f.slo_attainment, f.goodput_rps) == (42.0, 42.0, 0.0, 0.0)
    assert np.isnan(f.ttft_p99_s)
