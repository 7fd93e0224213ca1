"""The features of a batch of clusters by machine code: what `observe` gives of each, bit by bit.

By numpy, a batch costs some two hundred calls over arrays that are padded to the largest pool. Here each
cluster's replicas are taken one after the other, by the functions that the router's machine code is made
of (`predictors/passes.py`); exponentials and powers stay with numpy, as there.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.jit import feature_passes, njit
from steersman.predictors import analytic
from steersman.predictors.features import (
    AVERAGED,
    OUTPUT_P50,
    OUTPUT_P90,
    POOL_FEATURES,
    REPLICA_FEATURES,
)
from steersman.predictors.passes import BIASES, EXPONENTS, HELD

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
Bools = NDArray[np.bool_]

_passes = feature_passes()
_first_pass, _second_pass, _sum_up = _passes.first_pass, _passes.second_pass, _passes.sum_up


class BatchFeatures:
    """Computes features for batches of one size.

    Args:
        size: clusters of the batch.
        width: replicas that it has room for in each.
    """

    def __init__(self, size: int, width: int) -> None:
        self._held = np.empty((size, width, HELD))
        self._odds = np.empty((size, 2, width))
        self._totals = np.empty(len(AVERAGED))

    def of(
        self,
        state: Float64,
        request: Float32,
        match_tokens: Float64,
        now_s: Float64,
        replicas: Int64,
    ) -> tuple[Float32, Float32, Bools]:
        """`replica_features`, `pool_features`, and who may be chosen.

        Args:
            state: (size, width, STATE_WIDTH).
            request: (size, len(REQUEST_FEATURES)).
            match_tokens: (size, width).
            now_s: (size,).
            replicas: (size,), how many each cluster has: the features of the places after them are 0,
                and they may not be chosen.
        """
        features = np.zeros((*match_tokens.shape, len(REPLICA_FEATURES)), dtype=np.float32)
        pool = np.empty((len(request), len(POOL_FEATURES)), dtype=np.float32)
        mask = np.zeros(match_tokens.shape, dtype=np.bool_)
        p50 = np.maximum(request[:, OUTPUT_P50].astype(np.float64), 1.0)
        mean = analytic.mean_output(p50, request[:, OUTPUT_P90].astype(np.float64))
        biases = np.exp(state[..., BIASES])
        # Of places without a replica powers are taken too.
        self._odds.fill(1.0)
        asked = (state, request, match_tokens, biases, p50, mean, now_s, replicas)
        _first(*asked, features, self._held, self._odds, mask)
        np.power(self._odds, EXPONENTS, out=self._odds)
        _second(request, self._held, self._odds, replicas, mask, features, pool, self._totals)
        return features, pool, mask


@njit
def _first(
    state: Float64,
    request: Float32,
    match_tokens: Float64,
    biases: Float64,
    output_p50: Float64,
    output_mean: Float64,
    now_s: Float64,
    replicas: Int64,
    features: Float32,
    held: Float64,
    odds: Float64,
    mask: Bools,
) -> None:
    nobody = np.zeros(mask.shape[1], dtype=np.bool_)
    for i in range(len(state)):
        n = replicas[i]
        _first_pass(
            state[i][:n],
            request[i],
            match_tokens[i],
            biases[i],
            output_p50[i],
            output_mean[i],
            now_s[i],
            nobody,
            features[i],
            held[i],
            odds[i],
            mask[i],
        )


@njit
def _second(
    request: Float32,
    held: Float64,
    odds: Float64,
    replicas: Int64,
    mask: Bools,
    features: Float32,
    pool: Float32,
    totals: Float64,
) -> None:
    for i in range(len(request)):
        n = replicas[i]
        if n == 0:
            _sum_up(features[i], mask[i][:n], pool[i], totals)
            continue
        _second_pass(request[i], held[i][:n], odds[i], mask[i][:n], features[i], pool[i], totals)
