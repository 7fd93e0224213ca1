from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.agents.evaluate.figures import summarise
from steersman.env.outcomes import STATUSES, OutcomeTable
from steersman.traces.schema import Status

NAN = float("nan")


def outcomes(*statuses: Status) -> OutcomeTable:
    """Four requests: two fine on replica 0, one slow on 1, one failed on nobody; the third is P2."""
    named = statuses or (Status.OK, Status.OK, Status.OK, Status.FAILED)
    return OutcomeTable(
        request_ids=("a", "b", "c", "d"),
        status=np.array([STATUSES.index(status) for status in named], dtype=np.int8),
        replica=np.array([0, 0, 1, -1]),
        arrival_s=np.array([0.0, 1.0, 2.0, 3.0]),
        ttft_s=np.array([0.5, 0.5, 3.0, NAN]),
        tpot_s=np.array([0.025, 0.025, 0.025, NAN]),
        e2e_s=np.array([1.0, 2.0, 6.0, NAN]),
        input_tokens=np.array([100, 100, 200, 100]),
        output_tokens=np.array([10, 10, 10, 0]),
        cached_tokens=np.array([50, 0, 0, 0]),
        preemptions=np.array([0, 0, 2, 0]),
        priority=np.array([0, 1, 2, 0], dtype=np.int8),
        weight=np.array([1.0, 1.0, 0.25, 1.0]),
        ttft_slo_s=np.ones(4),
        tpot_slo_s=np.full(4, 0.05),
    )


def test_the_figures_of_a_run() -> None:
    f = summarise(outcomes(), start_s=0.0, end_s=10.0, replicas=3)
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
    f = summarise(outcomes(), start_s=1.0, end_s=3.0, replicas=2)
    assert f.requests == 2
    assert f.j1 == pytest.approx((1.0 + 5.5) / 2)
    assert f.goodput_rps == pytest.approx(0.5)


def test_what_never_arrived_is_not_counted_and_what_never_ended_costs_42() -> None:
    table = outcomes(Status.UNFINISHED, Status.UNFINISHED, Status.REJECTED, Status.FAILED)
    f = summarise(table, start_s=0.0, end_s=10.0, replicas=2)
    assert (f.j, f.j1, f.slo_attainment, f.goodput_rps) == (42.0, 42.0, 0.0, 0.0)
    assert np.isnan(f.ttft_p99_s)
    unborn = replace(table, arrival_s=np.array([0.0, NAN, NAN, NAN]))
    assert summarise(unborn, start_s=0.0, end_s=10.0, replicas=2).requests == 1


def test_requests_that_the_client_cancelled_are_left_out() -> None:
    table = outcomes(Status.OK, Status.OK, Status.CANCELLED, Status.CANCELLED)
    f = summarise(table, start_s=0.0, end_s=10.0, replicas=2)
    assert (f.requests, f.failed, f.slo_attainment) == (2, 0, 1.0)
