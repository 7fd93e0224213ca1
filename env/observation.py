"""The observation: features of the candidates, the request and the pool, assembled.

Used as it is by the simulator and by the router; computes nothing that `predictors/features.py` does
not define, and never sees the simulator's truth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import (
    NUMPY,
    REPLICA_FEATURES,
    Formulas,
    candidates,
    pool_features,
    replica_features,
)
from steersman.traces.schema import Observation

LEAST_WIDTH = 4
"""Pools of a batch are padded to this, or to the next power of two."""


def observe(
    state: NDArray[np.float64],
    request: NDArray[np.float32],
    match_tokens: NDArray[np.float64],
    now_s: NDArray[np.float64],
    excluded: NDArray[np.bool_] | None = None,
    identity: NDArray[np.int64] | None = None,
    formulas: Formulas = NUMPY,
) -> Observation:
    """Assemble what a policy sees, for one decision or for a batch of clusters.

    Args:
        state: (..., n, STATE_WIDTH), see `predictors/ledger.py`.
        request: (..., len(REQUEST_FEATURES)).
        match_tokens: (..., n), prompt tokens believed cached on each replica.
        now_s: (...,), the decision's time on the clock of SCRAPED_AT_S; 0-d for a single decision.
        excluded: (..., n), replicas this request may not use (a retry elsewhere); None for none.
        identity: (..., 2), see `predictors/identity.py`; None: unknown.
        formulas: of the features; of a single decision it may be machine code.
    """
    replicas, pool, mask = formulas.features(state, request, match_tokens, now_s, excluded)
    if identity is None:
        identity = np.zeros((*mask.shape[:-1], 2), dtype=np.int64)
    return Observation(replicas, request, pool, mask, identity, now_s)


def observe_padded(
    state: NDArray[np.float64],
    request: NDArray[np.float32],
    match_tokens: NDArray[np.float64],
    now_s: NDArray[np.float64],
    absent: NDArray[np.bool_],
    identity: NDArray[np.int64],
) -> Observation:
    """`observe` of a batch of clusters that differ in size.

    Args:
        absent: (b, n), where there is no replica: its features are 0, and it may not be chosen.
    """
    replicas = _features_of_present(state, request, match_tokens, now_s, absent)
    mask = candidates(state, absent)
    return Observation(replicas, request, pool_features(replicas, mask), mask, identity, now_s)


def _features_of_present(
    state: NDArray[np.float64],
    request: NDArray[np.float32],
    match_tokens: NDArray[np.float64],
    now_s: NDArray[np.float64],
    absent: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """`replica_features` of a batch whose pools differ in size, 0 where there is no replica.

    Pools of about the same size together, each as wide as the largest of them: padded to the largest of
    all, most of the work would be on nobody. One by one they would not do: what a replica saves by its
    cache is compared with the others'.
    """
    places = absent.shape[1]
    replicas = np.zeros((*absent.shape, len(REPLICA_FEATURES)), dtype=np.float32)
    # Where the last replica is; 0 of pools without any.
    sizes = np.where(absent.all(axis=1), 0, places - absent[:, ::-1].argmin(axis=1))
    widths = np.exp2(np.ceil(np.log2(np.maximum(sizes, LEAST_WIDTH)))).astype(np.intp)
    for width in np.unique(widths[sizes > 0]).tolist():
        rows, wide = np.flatnonzero((widths == width) & (sizes > 0)), min(width, places)
        replicas[rows, :wide] = replica_features(
            state[rows, :wide], request[rows], match_tokens[rows, :wide], now_s[rows]
        )
    replicas[absent] = 0.0
    return replicas
