from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.policies import make_policy
from steersman.agents.policies.marginal import weighted_terms
from steersman.agents.samples import sample_observation
from steersman.predictors import analytic
from steersman.predictors.features import COST_TERMS, REPLICA_INDEX

OPTIONS = {
    "own_weight": ("ttft_share", "tpot_share"),
    "miss_cost": ("miss_chance",),
    "inflicted_weight": ("inflicted_share",),
    "tipping_weight": ("tipping_share",),
    "congestion_weight": ("congestion_share",),
    "reuse_weight": ("reuse_share",),
    "eviction_weight": ("eviction_share",),
}
"""And the terms whose weights they are."""
COST = REPLICA_INDEX["marginal_cost"]


@pytest.mark.parametrize(("option", "terms"), OPTIONS.items())
@pytest.mark.parametrize("weight", [0.0, 0.7, 3.0])
def test_an_option_is_the_weight_of_its_terms(
    option: str, terms: tuple[str, ...], weight: float
) -> None:
    policy = make_policy("marginal-cost", seed=0, options={option: weight})
    for seed in range(20):
        seen = sample_observation(np.random.default_rng(seed), 6)
        cost = policy.cost(seen)  # type: ignore[attr-defined]
        expected = seen.replicas[:, COST].astype(np.float64)
        for term in terms:
            default = analytic.TERM_WEIGHTS[COST_TERMS.index(term)]
            expected += (weight - default) * seen.replicas[:, REPLICA_INDEX[term]]
        np.testing.assert_allclose(cost, expected, rtol=1e-4, atol=1e-5)


@given(seed=st.integers(0, 2**16))
def test_the_default_weights_give_the_feature_itself(seed: int) -> None:
    seen = sample_observation(np.random.default_rng(seed), 5)
    terms = weighted_terms(seen.replicas)
    assert (terms >= 0.0).all()
    np.testing.assert_allclose(terms.sum(axis=-1), seen.replicas[:, COST], rtol=1e-5, atol=1e-6)
    default = make_policy("marginal-cost", seed=0)
    np.testing.assert_array_equal(default.cost(seen), seen.replicas[:, COST])  # type: ignore[attr-defined]


def test_own_latency_alone_is_greedy() -> None:
    others = dict.fromkeys((option for option in OPTIONS if option != "own_weight"), 0.0)
    seen = sample_observation(np.random.default_rng(1), 6, allowed=6)
    policy = make_policy("marginal-cost", seed=0, options=others)
    assert policy.decide(seen).choice == int(weighted_terms(seen.replicas)[:, :2].sum(axis=-1).argmin())
