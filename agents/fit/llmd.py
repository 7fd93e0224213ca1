"""llm-d's predicted-latency model, on our samples: what ours is compared with.

Its training server fits boosted trees by quantile regression to the latency itself, on what the engine's
metrics and the request tell: TTFT on KV cache use, prompt tokens, waiting and running requests and the
share of the prompt in the prefix cache; TPOT on the first four and the tokens generated so far, which is
0 where a replica is chosen, so that it says nothing here. Our samples hold dead-reckoned counts, fresher
than the scraped ones it has. As there, one model serves all hardware.
"""

from __future__ import annotations

from typing import Any

import lightgbm as lgb
import numpy as np
from numpy.typing import NDArray

from steersman.agents.fit.forest import REPEATABLE, predict
from steersman.agents.fit.latency_quality import TARGETS, actual_s
from steersman.agents.fit.sampling import LatencySamples
from steersman.predictors.latency import LATENCY_INDEX, LEAST_S

LEVELS = (0.5, 0.9)
TREES = 200
PARAMETERS: dict[str, Any] = {
    "objective": "quantile",
    "num_leaves": 31,
    "learning_rate": 0.05,
    "min_data_in_leaf": 20,
    "bagging_fraction": 0.8,
    "bagging_freq": 1,
    "feature_fraction": 0.8,
    **REPEATABLE,
}

_ENGINE = [LATENCY_INDEX[name] for name in ("kv_usage", "input_tokens", "waiting", "running")]
_UNCACHED, _PROMPT = LATENCY_INDEX["uncached_tokens"], LATENCY_INDEX["input_tokens"]


def llmd_predictions(
    seen: LatencySamples, rows: NDArray[np.float32], *, seed: int
) -> NDArray[np.float64]:
    """Fit to samples, then predict others.

    Args:
        seen: to learn from.
        rows: (n, len(LATENCY_FEATURES)) to predict.
        seed: of LightGBM.

    Returns:
        (n, 4) seconds, in the order of `LATENCY_OUTPUTS`.
    """
    columns = []
    for target in TARGETS:
        known, actual = actual_s(seen, target)
        data = lgb.Dataset(_features(seen.rows[known], target), actual, free_raw_data=False)
        for level in LEVELS:
            forest = lgb.train({**PARAMETERS, "alpha": level, "seed": seed}, data, TREES)
            columns.append(predict(forest, _features(rows, target)))
    return np.maximum(np.stack(columns, axis=1), LEAST_S)


def _features(rows: NDArray[np.float32], target: str) -> NDArray[np.float32]:
    engine = rows[:, _ENGINE]
    if target == "tpot":
        return engine
    cached = 1.0 - rows[:, _UNCACHED] / np.maximum(rows[:, _PROMPT], 1.0)
    return np.column_stack((engine, cached)).astype(np.float32)
