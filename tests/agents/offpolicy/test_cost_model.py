"""The model of costs learns what the terms tell, and never from the fold it predicts."""

from __future__ import annotations

import numpy as np

from steersman.agents.offpolicy.cost_model import FOLDS, cost_terms, cross_fitted
from steersman.predictors.features import (
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
    REQUEST_INDEX,
)

RNG = np.random.default_rng(0)


def test_terms_are_shares_of_the_objectives() -> None:
    replicas = np.zeros((2, len(REPLICA_FEATURES)), dtype=np.float32)
    request = np.zeros(len(REQUEST_FEATURES), dtype=np.float32)
    request[[REQUEST_INDEX["ttft_slo_s"], REQUEST_INDEX["tpot_slo_s"]]] = 2.0, 0.05
    replicas[:, REPLICA_INDEX["ttft_s"]] = 1.0, np.nan
    replicas[:, REPLICA_INDEX["tpot_s"]] = 0.1, 0.025
    terms = cost_terms(replicas, request)
    assert np.allclose(terms[0], (1.0, 0.5, 2.0, np.log(1.5), np.log(3.0), 0.0, 1.0))
    assert terms[1, 1] == 20.0, "no estimate is no promise"


def test_a_linear_cost_is_found_and_the_fold_itself_not_seen() -> None:
    terms = np.column_stack((np.ones(500), RNG.uniform(0, 3, 500)))
    cost = 0.5 + 2.0 * terms[:, 1]
    modelled, expected = cross_fitted(terms, terms + np.array((0.0, 1.0)), cost)
    assert np.allclose(modelled, cost, atol=0.05)
    assert np.allclose(expected, cost + 2.0, atol=0.05)
    spoiled = cost.copy()
    first = slice(0, 500 // FOLDS)
    spoiled[first] = 40.0
    again, _ = cross_fitted(terms, terms, spoiled)
    assert np.allclose(again[first], cost[first], atol=0.05)
