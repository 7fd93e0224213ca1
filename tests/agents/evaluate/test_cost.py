from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.evaluate.cost import FAILED_COST, request_costs

times = st.lists(st.floats(0.0, 1e6), min_size=1, max_size=10)


def test_the_cost_is_latency_over_objective_plus_two_for_a_miss() -> None:
    costs = request_costs(
        np.ones(4, dtype=bool),
        np.array([0.5, 1.5, 2.0, 0.5]),
        np.array([0.025, 0.025, 0.05, 0.06]),
        np.array([1.0, 1.0, 2.0, 1.0]),
        np.full(4, 0.05),
    )
    np.testing.assert_allclose(costs, [0.5 + 0.5, 1.5 + 0.5 + 2, 1 + 1, 0.5 + 1.2 + 2])


def test_each_term_is_capped_and_failure_costs_42() -> None:
    nan = float("nan")
    costs = request_costs(
        np.array([True, False, False]),
        np.array([500.0, nan, 0.1]),
        np.array([500.0, nan, 0.01]),
        np.ones(3),
        np.full(3, 0.05),
    )
    assert costs.tolist() == [42.0, 42.0, 42.0]


def test_a_single_token_meets_its_tpot_objective() -> None:
    cost = request_costs(np.array([True]), np.array([0.5]), np.zeros(1), np.ones(1), np.full(1, 0.05))
    assert cost[0] == pytest.approx(0.5)


@given(ttft=times, tpot=st.floats(0.0, 10.0))
def test_no_request_costs_more_than_a_failed_one_or_less_than_a_faster_one(
    ttft: list[float], tpot: float
) -> None:
    ordered = np.sort(np.array(ttft))
    n = len(ordered)
    costs = request_costs(
        np.ones(n, dtype=bool), ordered, np.full(n, tpot), np.ones(n), np.full(n, 0.05)
    )
    assert np.all(np.diff(costs) >= 0)
    assert costs.max() <= FAILED_COST
