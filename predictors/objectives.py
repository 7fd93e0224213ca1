"""TTFT and TPOT objectives of requests that name none (EVALUATION, "Requests and service levels")."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from steersman.predictors import analytic
from steersman.predictors import ledger as L
from steersman.predictors.load import beside_replicas

Float64 = NDArray[np.float64]

TTFT_SLO_FLOOR_S = 1.0
TTFT_SLO_FACTOR = 3.0
TPOT_SLO_S = 0.05
TPOT_SLO_LARGE_S = 0.1
"""For models of 20B parameters and more (EVALUATION)."""
LARGE_MODEL_WEIGHTS_GIB = 37.0
"""20B parameters at two bytes each."""


def slo_s(
    state: Float64,
    prompt_tokens: float,
    unloaded_ttft_s: Callable[[Float64, Float64], Float64] = analytic.unloaded_ttft_s,
) -> tuple[float, float]:
    """`slo_columns` of one prompt; `unloaded_ttft_s` is `analytic`'s, or gives the same."""
    ttft, tpot = _slo_of(unloaded_ttft_s(state, np.array(prompt_tokens)), state)
    return float(ttft), tpot


def slo_columns(state: Float64, prompt_tokens: Float64) -> tuple[Float64, float]:
    """TTFT and TPOT objectives of requests on a pool (EVALUATION, "Requests and service levels").

    TTFT: the larger of 1 s and three times the unloaded, uncached TTFT on the pool's
    median-capacity replica. TPOT: 50 ms for models under 20B parameters, 100 ms above.

    Args:
        state: (n, STATE_WIDTH) of the whole pool, healthy or not, so that an outage moves no goal.
        prompt_tokens: (requests,), or () for one.

    Returns:
        TTFT of each, in the shape of `prompt_tokens`, and the TPOT of all, in seconds.
    """
    return _slo_of(analytic.unloaded_ttft_s(state, beside_replicas(prompt_tokens)), state)


def _slo_of(unloaded: Float64, state: Float64) -> tuple[Float64, float]:
    # The median by sorting: of a few replicas it takes a fifth of the time of `np.median`.
    ordered, middle = np.sort(unloaded, axis=-1), len(state) // 2
    median = 0.5 * (ordered[..., middle] + ordered[..., -1 - middle])
    ttft = np.maximum(TTFT_SLO_FLOOR_S, TTFT_SLO_FACTOR * median)
    large = float(state[:, L.WEIGHTS_GIB].max()) >= LARGE_MODEL_WEIGHTS_GIB
    return ttft, TPOT_SLO_LARGE_S if large else TPOT_SLO_S
