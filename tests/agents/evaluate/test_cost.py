from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.evaluate.cost import Objectives, class_weights, request_costs
from steersman.predictors import ledger as L
from steersman.predictors.features import slo_s
from steersman.traces.schema import HardwareProfile, ModelProfile


def state(*speeds: float, weights_gib: float = 15.0) -> np.ndarray:
    model = ModelProfile("m", weights_gib / 2, weights_gib, 131072, 131072)
    rows = [
        L.new_row(
            HardwareProfile(
                name="p",
                gpu="g",
                model=model,
                tensor_parallel=1,
                gpu_memory_gib=80.0,
                decode_base_s=0.01 / speed,
                decode_seq_s=1e-4,
                decode_context_s=1e-7,
                prefill_base_s=0.01,
                prefill_token_s=1e-4 / speed,
                prefill_token2_s=1e-9,
                host_overhead_s=0.001,
                kv_capacity_tokens=100_000,
            )
        )
        for speed in speeds
    ]
    return np.stack(rows)


def test_the_cost_is_latency_over_objective_plus_two_for_a_miss() -> None:
    objectives = Objectives(np.array([1.0, 1.0, 2.0, 1.0]), 0.05)
    costs = request_costs(
        np.array([True, True, True, True]),
        np.array([0.5, 1.5, 2.0, 0.5]),
        np.array([0.025, 0.025, 0.05, 0.06]),
        objectives,
    )
    np.testing.assert_allclose(costs.cost, [0.5 + 0.5, 1.5 + 0.5 + 2, 1 + 1, 0.5 + 1.2 + 2])
    assert costs.met.tolist() == [True, False, True, False]


def test_each_term_is_capped_and_failure_costs_42() -> None:
    objectives = Objectives(np.ones(3), 0.05)
    nan = float("nan")
    costs = request_costs(
        np.array([True, False, False]),
        np.array([500.0, nan, 0.1]),
        np.array([500.0, nan, 0.01]),
        objectives,
    )
    assert costs.cost.tolist() == [42.0, 42.0, 42.0]
    assert not costs.met.any()


def test_a_single_token_meets_its_tpot_objective() -> None:
    costs = request_costs(
        np.array([True]), np.array([0.5]), np.array([0.0]), Objectives(np.ones(1), 0.05)
    )
    assert costs.met.all()
    assert costs.cost[0] == pytest.approx(0.5)


@given(
    prompts=st.lists(st.integers(1, 100_000), min_size=1, max_size=20),
    speeds=st.lists(st.floats(0.2, 3.0), min_size=1, max_size=5),
    large=st.booleans(),
)
def test_objectives_are_those_the_policies_see(
    prompts: list[int], speeds: list[float], large: bool
) -> None:
    pool = state(*speeds, weights_gib=140.0 if large else 15.0)
    objectives = Objectives.of(pool, np.array(prompts, dtype=np.float64))
    seen = [slo_s(pool, float(prompt)) for prompt in prompts]
    np.testing.assert_allclose(objectives.ttft_s, [ttft for ttft, _ in seen])
    assert objectives.tpot_s == seen[0][1]


def test_batch_classes_weigh_a_quarter() -> None:
    assert class_weights(np.array([0, 1, 2, 3], dtype=np.int8)).tolist() == [1.0, 1.0, 0.25, 0.25]
