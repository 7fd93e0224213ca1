"""The cost J of a request: what every policy is judged by (docs/evaluation.md)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Float64 = NDArray[np.float64]

TERM_CAP = 20.0
"""Each of the two latency terms counts at most this much."""
MISS_COST = 2.0
FAILED_COST = 2.0 * TERM_CAP + MISS_COST
"""Of a request that was refused, failed or never finished: 42."""


def request_costs(
    ended_well: NDArray[np.bool_],
    ttft_s: Float64,
    tpot_s: Float64,
    ttft_slo_s: Float64,
    tpot_slo_s: Float64,
) -> Float64:
    """Cost of each request, (n,)::

        min(TTFT / TTFT_SLO, 20) + min(TPOT / TPOT_SLO, 20) + 2 [either SLO missed]

    and 42 for one that did not end well, whatever its times say.

    Args:
        ended_well: (n,), false for refused, failed and unfinished requests.
        ttft_s, tpot_s: (n,); TPOT is 0 for a single output token.
        ttft_slo_s, tpot_slo_s: (n,), the objectives.
    """
    missed = (ttft_s > ttft_slo_s) | (tpot_s > tpot_slo_s)
    ttft = np.minimum(ttft_s / ttft_slo_s, TERM_CAP)
    tpot = np.minimum(tpot_s / tpot_slo_s, TERM_CAP)
    return np.where(ended_well, ttft + tpot + MISS_COST * missed, FAILED_COST)
