"""A model of what a choice costs, for the doubly robust estimate: least squares over what was known.

The terms are the analytic estimates of TTFT and TPOT over the request's objectives (their capped values,
logs, and whether they miss), so it knows what the features know and little more. It is cross-fitted: the
costs of a fold are predicted from the others, since a model that has seen the cost it corrects would
correct nothing (Chernozhukov et al. 2018, "Double/debiased machine learning").
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.cost import FAILED_COST, TERM_CAP
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX

Float64 = NDArray[np.float64]

FOLDS = 5
RIDGE = 1e-3
"""Of the number of rows, on every coefficient but the constant."""
_TTFT, _TPOT = REPLICA_INDEX["ttft_s"], REPLICA_INDEX["tpot_s"]
_TTFT_SLO, _TPOT_SLO = REQUEST_INDEX["ttft_slo_s"], REQUEST_INDEX["tpot_slo_s"]


def cost_terms(replicas: NDArray[np.float32], request: NDArray[np.float32]) -> Float64:
    """What the model looks at of every candidate, (..., n, terms).

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
        request: (..., len(REQUEST_FEATURES)).
    """
    wide, objectives = replicas.astype(np.float64), request.astype(np.float64)
    ttft = _capped(wide[..., _TTFT] / objectives[..., None, _TTFT_SLO])
    tpot = _capped(wide[..., _TPOT] / objectives[..., None, _TPOT_SLO])
    columns = (np.ones_like(ttft), ttft, tpot, np.log1p(ttft), np.log1p(tpot), ttft > 1.0, tpot > 1.0)
    return np.stack([np.asarray(column, dtype=np.float64) for column in columns], axis=-1)


def _capped(share: Float64) -> Float64:
    """A NaN counts as the worst: no estimate is no promise."""
    return np.where(np.isnan(share), TERM_CAP, np.minimum(share, TERM_CAP))


def cross_fitted(done: Float64, others: Float64, cost: Float64) -> tuple[Float64, Float64]:
    """Modelled cost of what was done, and of what the target would have done.

    Args:
        done: (n, terms) of what was done, in order of time.
        others: (n, terms) of the target's choice, averaged over its draws where it draws.
        cost: (n,) what came of what was done.

    Returns:
        (n,) and (n,), between 0 and the largest cost there is.
    """
    fold = np.arange(len(cost)) * FOLDS // max(len(cost), 1)
    modelled, expected = np.empty(len(cost)), np.empty(len(cost))
    for each in range(FOLDS):
        held, seen = fold == each, fold != each
        coefficients = _fit(done[seen], cost[seen])
        modelled[held] = done[held] @ coefficients
        expected[held] = others[held] @ coefficients
    return np.clip(modelled, 0.0, FAILED_COST), np.clip(expected, 0.0, FAILED_COST)


def _fit(terms: Float64, cost: Float64) -> Float64:
    """Ridge regression, the constant free."""
    if not len(cost):
        return np.zeros(terms.shape[1])
    penalty = RIDGE * len(cost) * np.eye(terms.shape[1])
    penalty[0, 0] = 0.0
    gram = terms.T @ terms + penalty + 1e-12 * np.eye(terms.shape[1])
    return np.asarray(np.linalg.solve(gram, terms.T @ cost), dtype=np.float64)
