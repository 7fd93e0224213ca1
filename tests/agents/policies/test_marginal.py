from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.policies import make_policy
from steersman.agents.policies.marginal import MarginalCostOptions, marginal_terms
from steersman.agents.samples import sample_observation
from steersman.predictors import analytic
from steersman.predictors.features import REPLICA_INDEX

CONSTANTS = {
    "MISS_WEIGHT": "miss_cost",
    "INFLICTED_WEIGHT": "inflicted_weight",
    "TIPPING_WEIGHT": "tipping_weight",
    "CONGESTION_WEIGHT": "congestion_weight",
    "REUSE_WEIGHT": "reuse_weight",
}
"""Of the estimate, and the options that stand for them."""
COST = REPLICA_INDEX["marginal_cost"]


@pytest.mark.parametrize(("constant", "option"), CONSTANTS.items())
@pytest.mark.parametrize("weight", [0.0, 0.7, 3.0])
def test_an_option_does_what_the_constant_of_the_estimate_would(
    monkeypatch: pytest.MonkeyPatch, constant: str, option: str, weight: float
) -> None:
    policy = make_policy("marginal-cost", seed=0, options={option: weight})
    for seed in range(20):
        seen = sample_observation(np.random.default_rng(seed), 6)
        cost = policy.cost(seen)  # type: ignore[attr-defined]
        with monkeypatch.context() as patched:
            patched.setattr(analytic, constant, weight)
            expected = sample_observation(np.random.default_rng(seed), 6).replicas[:, COST]
        np.testing.assert_allclose(cost, expected, rtol=2e-4, atol=2e-4)


@given(seed=st.integers(0, 2**16))
def test_the_default_weights_give_the_feature_itself(seed: int) -> None:
    seen = sample_observation(np.random.default_rng(seed), 5)
    terms = marginal_terms(seen.replicas, seen.request)
    assert (terms >= 0.0).all()
    weights = list(MarginalCostOptions().model_dump().values())
    np.testing.assert_allclose(terms @ weights, seen.replicas[:, COST], rtol=2e-4, atol=2e-4)
    default = make_policy("marginal-cost", seed=0)
    np.testing.assert_array_equal(default.cost(seen), seen.replicas[:, COST])  # type: ignore[attr-defined]


def test_own_latency_alone_is_greedy() -> None:
    others = dict.fromkeys(CONSTANTS.values(), 0.0)
    seen = sample_observation(np.random.default_rng(1), 6, allowed=6)
    terms = marginal_terms(seen.replicas, seen.request)
    policy = make_policy("marginal-cost", seed=0, options=others)
    assert policy.decide(seen).choice == int(terms[:, 0].argmin())
