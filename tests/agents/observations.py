"""Observations written out by hand: all features 0 but the given ones."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import (
    POOL_FEATURES,
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
    REQUEST_INDEX,
)
from steersman.predictors.identity import identity
from steersman.traces.schema import Observation


def observation(
    n: int,
    mask: list[bool] | None = None,
    request: dict[str, float] | None = None,
    *,
    tenant: str = "",
    session: str | None = None,
    at_s: float = 0.0,
    **columns: list[float],
) -> Observation:
    """n candidates, allowed everywhere unless a mask is given; columns by their name."""
    replicas = np.zeros((n, len(REPLICA_FEATURES)), dtype=np.float32)
    for name, values in columns.items():
        replicas[:, REPLICA_INDEX[name]] = values
    asked = np.zeros(len(REQUEST_FEATURES), dtype=np.float32)
    for name, value in (request or {}).items():
        asked[REQUEST_INDEX[name]] = value
    allowed: NDArray[np.bool_] = np.array(mask if mask is not None else [True] * n)
    pool = np.zeros(len(POOL_FEATURES), dtype=np.float32)
    return Observation(replicas, asked, pool, allowed, identity(tenant, session), np.array(at_s))


def reordered(seen: Observation, order: NDArray[np.int64]) -> Observation:
    """The same candidates in another order."""
    return Observation(
        seen.replicas[order], seen.request, seen.pool, seen.mask[order], seen.identity, seen.at_s
    )
