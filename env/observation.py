"""The observation: features of the candidates, the request and the pool, assembled.

Used as it is by the simulator and by the router; computes nothing that `predictors/features.py` does
not define, and never sees the simulator's truth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import ledger as L
from steersman.predictors.features import REPLICA_FEATURES, pool_features, replica_features
from steersman.traces.schema import Observation

MOST_PRESENT = 0.6
"""Share of a batch's places with replicas, up to which these are worth gathering."""


def observe(
    state: NDArray[np.float64],
    request: NDArray[np.float32],
    match_tokens: NDArray[np.float64],
    now_s: NDArray[np.float64],
    excluded: NDArray[np.bool_] | None = None,
    identity: NDArray[np.int64] | None = None,
    absent: NDArray[np.bool_] | None = None,
) -> Observation:
    """Assemble what a policy sees, for one decision or for a batch of clusters.

    Args:
        state: (..., n, STATE_WIDTH), see `predictors/ledger.py`.
        request: (..., len(REQUEST_FEATURES)).
        match_tokens: (..., n), prompt tokens believed cached on each replica.
        now_s: (...,), the decision's time on the clock of SCRAPED_AT_S; 0-d for a single decision.
        excluded: (..., n), replicas this request may not use (a retry elsewhere); None for none.
        identity: (..., 2), see `predictors/identity.py`; None: unknown.
        absent: (b, n), of a batch, where there is no replica: its features are 0; None: nowhere.
    """
    if absent is None:
        replicas = replica_features(state, request, match_tokens, now_s)
    else:
        replicas = _features_of_present(state, request, match_tokens, now_s, ~absent)
    mask = (state[..., L.HEALTHY] > 0) & (state[..., L.DRAINING] == 0)
    if absent is not None:
        mask &= ~absent
    if excluded is not None:
        mask = mask & ~excluded
    if identity is None:
        identity = np.zeros((*mask.shape[:-1], 2), dtype=np.int64)
    return Observation(replicas, request, pool_features(replicas, mask), mask, identity, now_s)


def _features_of_present(
    state: NDArray[np.float64],
    request: NDArray[np.float32],
    match_tokens: NDArray[np.float64],
    now_s: NDArray[np.float64],
    present: NDArray[np.bool_],
) -> NDArray[np.float32]:
    """`replica_features` of a batch whose pools differ in size, each replica by itself where most of the
    places are empty."""
    if np.count_nonzero(present) > MOST_PRESENT * present.size:
        replicas = replica_features(state, request, match_tokens, now_s)
        replicas[~present] = 0.0
        return replicas
    whose = np.nonzero(present)[0]
    replicas = np.zeros((*present.shape, len(REPLICA_FEATURES)), dtype=np.float32)
    alone = replica_features(
        state[present][:, None], request[whose], match_tokens[present][:, None], now_s[whose]
    )
    replicas[present] = alone[:, 0]
    return replicas
