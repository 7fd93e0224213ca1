"""Observations as Gymnasium sees them."""

from __future__ import annotations

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from steersman.predictors.features import POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.traces.schema import Observation

MOST = 1e9
"""Bound of the observation space; larger values are clipped."""

Arrays = dict[str, NDArray[np.float32]]


def observation_space(most_replicas: int) -> spaces.Dict:
    """The space of one observation."""

    def box(*shape: int, low: float = -1.0, high: float = MOST) -> spaces.Box:
        return spaces.Box(low, high, shape, dtype=np.float32)

    return spaces.Dict(
        {
            "replicas": box(most_replicas, len(REPLICA_FEATURES)),
            "request": box(len(REQUEST_FEATURES)),
            "pool": box(len(POOL_FEATURES)),
            "mask": box(most_replicas, low=0.0, high=1.0),
        }
    )


def as_arrays(observation: Observation) -> Arrays:
    """An observation, single or batched, as an element of the space."""
    return {
        "replicas": np.clip(observation.replicas, -1.0, MOST),
        "request": np.clip(observation.request, -1.0, MOST),
        "pool": np.clip(observation.pool, -1.0, MOST),
        "mask": observation.mask.astype(np.float32),
    }
