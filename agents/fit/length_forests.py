"""The forests of the output-length model: how they grow, and which of them are worth having.

A quantile forest learns what must be added to what is expected without it (`predictors/length.py`): the
tenant's own blended quantile, as the wording moves it. With no tree at all the model is that: where
requests say no more (ServeGen's tenants draw input and output independently), it stays there instead of
fitting noise. A rank forest learns the log of the length under squared error, from nothing; it is kept
where it orders held-out answers better than p50 does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray
from scipy.stats import kendalltau

from steersman.agents.fit.forest import EXPORTABLE, predict
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.length import expected_quantiles

LEVELS = (0.5, 0.9)
QUANTILES = ("p50", "p90")
RANK = "rank"
HOURS = [LENGTH_FEATURES.index(name) for name in ("hour_sin", "hour_cos")]

MOST_TREES = 300
PATIENCE = 20
LEAST_GAIN = 0.03
"""Of the pinball loss on the tuning part. Less than this is not worth a forest: traffic drifts, and on
generated days of ServeGen gains of 2 % there became losses of 1 to 3 % an hour later."""
LEAST_ORDER = 0.01
"""Of Kendall's tau on the tuning part of n rows, that a rank forest must gain over p50; and 1 / sqrt(n),
since less than that is chance."""
LEAF_SHARE = 1 / 300
"""Of the training rows: the least that a leaf must hold."""
LEAST_HOURS = 22
"""Of the day's 24 that the rows must cover for the hour to be read: a model that has seen part of a day
would make something of it, and meet other hours when it serves."""
PARAMETERS: dict[str, Any] = {
    "num_leaves": 15,
    "learning_rate": 0.04,
    **EXPORTABLE,
}

Rows = NDArray[np.float32]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class LengthForests:
    """A fitted model in parts: what `agents/fit/length_graph.py` makes a graph of."""

    constants: tuple[float, float]
    """Quantiles for a request whose tenant and model nobody knows."""
    forests: Mapping[str, lgb.Booster]
    """By name: those that are worth having."""
    shifts: tuple[float, ...]
    """Added to each quantile."""

    def predict(self, rows: Rows) -> Values:
        """p50, p90 and rank as the graph answers them, (n, 3)."""
        out = np.empty((len(rows), 3))
        base = expected_quantiles(rows, self.constants)
        for i, name in enumerate(QUANTILES):
            out[:, i] = base[:, i] + self.shifts[i]
            if name in self.forests:
                out[:, i] += predict(self.forests[name], rows)
        if RANK in self.forests:
            out[:, 2] = predict(self.forests[RANK], rows)
        else:
            out[:, 2] = np.log(np.maximum(out[:, 0], 1.0))
        return out


def grow(rows: Rows, outputs: Values, first: int, second: int, *, seed: int) -> LengthForests:
    """Grow on `[:first]`, stop early, choose and calibrate on `[first:second]`.

    Args:
        rows: (n, len(LENGTH_FEATURES)), in order of time.
        outputs: (n,), tokens.
    """
    read = _readable(rows)
    train, tune = slice(0, first), slice(first, second)
    constants = _quantiles(outputs[:second])
    bases = expected_quantiles(rows, constants)
    forests, shifts = {}, []
    for i, (name, level) in enumerate(zip(QUANTILES, LEVELS, strict=True)):
        base = bases[:, i]
        forest = _grow_quantile(read, outputs - base, level, seed, train, tune)
        with_forest = base[tune] + predict(forest, read[tune])
        actual = outputs[tune]
        chosen = base[tune]
        if pinball(actual, with_forest, level) < (1.0 - LEAST_GAIN) * pinball(actual, chosen, level):
            forests[name], chosen = forest, with_forest
        shifts.append(_shift(actual, chosen, level))
    made = LengthForests(constants, forests, tuple(shifts))
    ranking = _grow_rank(read, np.log(outputs), seed, train, tune)
    least = max(LEAST_ORDER, (second - first) ** -0.5)
    order = _tau(predict(ranking, read[tune]), outputs[tune])
    if order > _tau(made.predict(rows[tune])[:, 0], outputs[tune]) + least:
        forests[RANK] = ranking
    return LengthForests(constants, forests, tuple(shifts))


def regrow(made: LengthForests, rows: Rows, outputs: Values, *, seed: int) -> LengthForests:
    """The same forests, of as many trees each, on all rows: a service wants the newest data."""
    read = _readable(rows)
    constants = _quantiles(outputs)
    bases = expected_quantiles(rows, constants)
    forests = {}
    for i, (name, level) in enumerate(zip(QUANTILES, LEVELS, strict=True)):
        if name in made.forests:
            data = lgb.Dataset(read, outputs - bases[:, i])
            forests[name] = lgb.train(
                _quantile_parameters(level, len(rows), seed), data, _trees(made.forests[name])
            )
    if RANK in made.forests:
        parameters = {**_parameters(len(rows), seed), "objective": "regression"}
        data = lgb.Dataset(read, np.log(outputs))
        forests[RANK] = lgb.train(parameters, data, _trees(made.forests[RANK]))
    return LengthForests(constants, forests, made.shifts)


def pinball(actual: Values, predicted: Values, level: float) -> float:
    """Mean pinball loss: what the `level` quantile minimises."""
    error = actual - predicted
    return float(np.mean(np.maximum(level * error, (level - 1.0) * error)))


def _quantiles(outputs: Values) -> tuple[float, float]:
    p50, p90 = np.quantile(outputs, LEVELS).tolist()
    return p50, p90


def _readable(rows: Rows) -> Rows:
    """The rows with the hour taken out where they do not cover the day."""
    sin, cos = rows[:, HOURS[0]], rows[:, HOURS[1]]
    known = (sin != 0) | (cos != 0)
    hours = np.floor(np.arctan2(sin[known], cos[known]) * (12.0 / np.pi)).astype(int) % 24
    if len(np.unique(hours)) >= LEAST_HOURS:
        return rows
    read = rows.copy()
    read[:, HOURS] = 0.0
    return read


def _grow_quantile(
    rows: Rows, errors: Values, level: float, seed: int, train: slice, tune: slice
) -> lgb.Booster:
    data = lgb.Dataset(rows[train], errors[train], free_raw_data=False)
    check = lgb.Dataset(rows[tune], errors[tune], reference=data, free_raw_data=False)
    return _stopped(_quantile_parameters(level, len(rows[train]), seed), data, check)


def _grow_rank(rows: Rows, logs: Values, seed: int, train: slice, tune: slice) -> lgb.Booster:
    data = lgb.Dataset(rows[train], logs[train], free_raw_data=False)
    check = lgb.Dataset(rows[tune], logs[tune], reference=data, free_raw_data=False)
    return _stopped({**_parameters(len(rows[train]), seed), "objective": "regression"}, data, check)


def _stopped(parameters: dict[str, Any], data: lgb.Dataset, check: lgb.Dataset) -> lgb.Booster:
    return lgb.train(
        parameters,
        data,
        MOST_TREES,
        valid_sets=[check],
        callbacks=[lgb.early_stopping(PATIENCE, verbose=False)],
    )


def _parameters(rows: int, seed: int) -> dict[str, Any]:
    return {**PARAMETERS, "min_data_in_leaf": max(30, int(rows * LEAF_SHARE)), "seed": seed}


def _quantile_parameters(level: float, rows: int, seed: int) -> dict[str, Any]:
    # Not from the average: without a tree, nothing is to be added.
    own = {"objective": "quantile", "alpha": level, "boost_from_average": False}
    return {**_parameters(rows, seed), **own}


def _trees(forest: lgb.Booster) -> int:
    return int(max(forest.best_iteration, 1))


def _shift(actual: Values, predicted: Values, level: float) -> float:
    """What must be added for a share `level` of the actual values to lie below, if that makes the loss
    less (conformal: Romano, Patterson & Candès 2019).

    An upper quantile is never lowered: traffic drifts, and too few tokens foreseen cost more than
    too many.
    """
    shift = float(np.quantile(actual - predicted, level))
    shift = shift if level == LEVELS[0] else max(shift, 0.0)
    better = pinball(actual, predicted + shift, level) < pinball(actual, predicted, level)
    return shift if better else 0.0


def _tau(predicted: Values, actual: Values) -> float:
    """Kendall's tau-b; 0 where either does not vary."""
    tau = float(kendalltau(predicted, actual).statistic)
    return 0.0 if np.isnan(tau) else tau
