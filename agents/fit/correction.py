"""What is learned of one latency: a correction of its analytic estimate, and how sure that is.

::

    log p50 = slope * log(estimate) + weight * correction(row) + centre
    log p90 = log p50 + width * exp(spread(row))

Both functions are forests, monotone in `LOAD_FEATURES`: more queue is never faster. LightGBM refuses
such constraints with the absolute loss, so the correction is fitted under Huber's, close to it. It is a
correction of `estimate ** SLOPE`: the constraints then leave room to say that the estimate overstates
the worst, which with a slope of 1 they forbid (errors of TTFT were 5 to 20 % larger).

`centre` and `width` are conformal: the median of the log residuals, and the quantile 0.9 of the
residuals above it in units of the predicted spread (Lei et al. 2018), over residuals and spreads on
groups of samples that the forests had not seen. The weight, from 0 to 1, is what made those residuals
smallest: where the forest does not do better than the estimate, the estimate stays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from steersman.agents.fit.forest import EXPORTABLE, predict
from steersman.predictors.latency import LATENCY_FEATURES, LATENCY_INDEX, LEAST_S, LOAD_FEATURES

SLOPE = 0.7
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 1.0)
LEVEL = 0.9
FLOOR = 0.02
"""Log residuals below this are all as good: the spread is fitted to log(|residual| + FLOOR)."""
TREES = {"ttft": 100, "tpot": 60}
LEAVES = {"ttft": 15, "tpot": 7}
"""As good within 2 % as 150 trees of 15 leaves for each, which take three times as long to ask."""
SPREAD_TREES, SPREAD_LEAVES = 20, 4
PARAMETERS: dict[str, Any] = {
    "learning_rate": 0.15,
    "monotone_constraints": [int(name in LOAD_FEATURES) for name in LATENCY_FEATURES],
    **EXPORTABLE,
}

Rows = NDArray[np.float32]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Correction:
    """Of one target. What the served graph must answer; `latency_graph.py` writes that."""

    target: str
    """`ttft` or `tpot`."""
    forest: lgb.Booster
    spread: lgb.Booster
    weight: float
    centre: float
    width: float

    @property
    def slope(self) -> float:
        """Power of the estimate."""
        return self.weight * SLOPE + 1.0 - self.weight

    @property
    def constants(self) -> tuple[float, ...]:
        """What makes it up besides the forests."""
        return self.weight, self.centre, self.width

    def predict(self, rows: Rows) -> Values:
        """p50 and p90 in seconds, (n, 2)."""
        middle = self.slope * log_estimate(rows, self.target)
        middle += self.weight * predict(self.forest, rows) + self.centre
        above = self.width * np.exp(predict(self.spread, rows))
        return np.exp(np.stack((middle, middle + above), axis=1))


def fit_correction(
    rows: Rows,
    actual: Values,
    folds: NDArray[np.int64],
    recent: NDArray[np.bool_],
    target: str,
    seed: int,
) -> Correction:
    """Fit and calibrate.

    Args:
        rows: (n, len(LATENCY_FEATURES)).
        actual: (n,), seconds, all above 0.
        folds: (n,), small numbers; what belongs together is in one fold.
        recent: (n,), those whose residuals calibrate: most like what is to come.
        target: `ttft` or `tpot`.
        seed: of LightGBM.
    """
    estimate = log_estimate(rows, target)
    wanted = np.log(actual) - SLOPE * estimate
    shape = {"objective": "huber", "alpha": 0.3, "num_leaves": LEAVES[target], "min_data_in_leaf": 40}
    unseen = _crossed(rows, wanted, folds, shape, TREES[target], seed)
    residuals = {weight: np.log(actual) - _middle(weight, estimate, unseen) for weight in WEIGHTS}
    weight = min(WEIGHTS, key=lambda w: _error(residuals[w]))
    centre = float(np.median(residuals[weight][recent]))
    off = residuals[weight] - centre
    doubt = np.log(np.abs(off) + FLOOR)
    shape_of_doubt = {"objective": "l2", "num_leaves": SPREAD_LEAVES, "min_data_in_leaf": 100}
    spread = _crossed(rows, doubt, folds, shape_of_doubt, SPREAD_TREES, seed)
    width = float(np.quantile((off / np.exp(spread))[recent], LEVEL))
    return Correction(
        target=target,
        forest=_grow(rows, wanted, shape, TREES[target], seed),
        spread=_grow(rows, doubt, shape_of_doubt, SPREAD_TREES, seed),
        weight=weight,
        centre=centre,
        width=max(width, 0.0),
    )


def log_estimate(rows: Rows, target: str) -> Values:
    """Log of the analytic estimate, (n,)."""
    estimate = rows[:, LATENCY_INDEX[f"{target}_s"]].astype(np.float64)
    return np.log(np.maximum(estimate, LEAST_S))


def _middle(weight: float, estimate: Values, correction: Values) -> Values:
    return (weight * SLOPE + 1.0 - weight) * estimate + weight * correction


def _error(residuals: Values) -> float:
    """Median absolute percentage error once centred."""
    return float(np.median(np.abs(np.expm1(np.median(residuals) - residuals))))


def _crossed(
    rows: Rows, wanted: Values, folds: NDArray[np.int64], shape: dict[str, Any], trees: int, seed: int
) -> Values:
    """For each sample the answer of a forest that saw nothing of its fold."""
    answers = np.empty(len(rows))
    for fold in np.unique(folds):
        out = folds == fold
        answers[out] = predict(_grow(rows[~out], wanted[~out], shape, trees, seed), rows[out])
    return answers


def _grow(rows: Rows, wanted: Values, shape: dict[str, Any], trees: int, seed: int) -> lgb.Booster:
    return lgb.train({**PARAMETERS, **shape, "seed": seed}, lgb.Dataset(rows, wanted), trees)
