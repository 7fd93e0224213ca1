"""The observation: features of the candidates, the request and the pool, assembled.

Used as it is by the simulator and by the router; computes nothing that `predictors/features.py` does
not define, and never sees the simulator's truth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.features import NUMPY, Formulas
from steersman.traces.schema import Observation


def observe(
    state: NDArray[np.float64],
    request: NDArray[np.float32],
    match_tokens: NDArray[np.float64],
    now_s: NDArray[np.float64],
    excluded: NDArray[np.bool_] | None = None,
    identity: NDArray[np.int64] | None = None,
    formulas: Formulas = NUMPY,
) -> Observation:
    """Assemble what a policy sees for one decision; `batch_features.py` does it for many.

    Args:
        state: (n, STATE_WIDTH), see `predictors/ledger.py`.
        request: (len(REQUEST_FEATURES),).
        match_tokens: (n,), prompt tokens believed cached on each replica.
        now_s: (), the decision's time on the clock of SCRAPED_AT_S.
        excluded: (n,), replicas this request may not use (a retry elsewhere); None for none.
        identity: (2,), see `predictors/identity.py`; None: unknown.
        formulas: of the features: numpy's, or machine code.
    """
    replicas, pool, mask = formulas.features(state, request, match_tokens, now_s, excluded)
    if identity is None:
        identity = np.zeros(2, dtype=np.int64)
    return Observation(replicas, request, pool, mask, identity, now_s)
