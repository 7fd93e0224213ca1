"""TTFT and TPOT of a request on each candidate, p50 and p90 (SPEC A3): the served model.

The graph corrects the analytic estimate (`predictors/analytic.py`, with the online bias) rather than
replacing it: p50 is `estimate ** slope * exp(correction)`, p90 is `p50 * exp(spread)` with a spread of
0 or more, so that hardware and loads beyond the training data lean on physics and p90 cannot lie below
p50. Both rise with `LOAD_FEATURES`: corrections and spreads are constrained to, and slopes are positive.
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from steersman.predictors.bundle import LATENCY_FILE
from steersman.predictors.bundled_model import BundledModel
from steersman.predictors.features import REPLICA_INDEX, REQUEST_INDEX
from steersman.predictors.onnx_model import OnnxModel

KIND = "latency"

LATENCY_OUTPUTS: tuple[str, ...] = ("ttft_p50_s", "ttft_p90_s", "tpot_p50_s", "tpot_p90_s")

_FROM_REPLICA: tuple[str, ...] = (
    "running",
    "waiting",
    "batch_use",
    "kv_usage",
    "inflight",
    "inflight_prefill",
    "prefill_tokens",
    "context_tokens",
    "output_tokens",
    "uncached_tokens",
    "ttft_s",
    "tpot_s",
    "mean_ttft_s",
    "mean_tpot_s",
    "age_s",
    "decode_base_s",
    "prefill_token_s",
    "kv_capacity_tokens",
)
_FROM_REQUEST: tuple[str, ...] = ("input_tokens", "priority", "output_p50", "output_p90")

LATENCY_FEATURES: tuple[str, ...] = (*_FROM_REPLICA, *_FROM_REQUEST, "log_bias_ttft", "log_bias_tpot")
"""Inputs of the latency model: columns of `REPLICA_FEATURES`, then of `REQUEST_FEATURES`, then how far
the online corrector has moved the replica's analytic estimates (log of corrected over raw).

The marginal cost and the service levels are left out: they say what a latency is worth, not how long
it is.
"""

LOAD_FEATURES: tuple[str, ...] = (
    "running",
    "waiting",
    "batch_use",
    "kv_usage",
    "inflight",
    "inflight_prefill",
    "prefill_tokens",
    "context_tokens",
    "output_tokens",
    "ttft_s",
    "tpot_s",
)
"""Those that more work at a replica raises: where one rises, no prediction falls, all else equal."""

LATENCY_INDEX = {name: i for i, name in enumerate(LATENCY_FEATURES)}

_REPLICA_COLUMNS = np.array([REPLICA_INDEX[name] for name in _FROM_REPLICA])
_REQUEST_COLUMNS = np.array([REQUEST_INDEX[name] for name in _FROM_REQUEST])
_CORRECTED = (REPLICA_INDEX["ttft_s"], REPLICA_INDEX["tpot_s"])
_RAW = (REPLICA_INDEX["raw_ttft_s"], REPLICA_INDEX["raw_tpot_s"])

LEAST_S, MOST_S = 1e-4, 3600.0
"""Bounds on every predicted latency: below and above it hardly is one."""

FALLBACK_SPREAD = 2.0
"""Without a model, p90 is taken to be this many times p50."""


def latency_rows(replicas: NDArray[np.float32], request: NDArray[np.float32]) -> NDArray[np.float32]:
    """`LATENCY_FEATURES` of every candidate, (..., n, len(LATENCY_FEATURES)).

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
        request: (..., len(REQUEST_FEATURES)).
    """
    split = len(_FROM_REPLICA)
    rows = np.empty((*replicas.shape[:-1], len(LATENCY_FEATURES)), dtype=np.float32)
    rows[..., :split] = replicas.take(_REPLICA_COLUMNS, axis=-1)
    rows[..., split:-2] = request.take(_REQUEST_COLUMNS, axis=-1)[..., None, :]
    estimates = replicas.take(_CORRECTED + _RAW, axis=-1)
    np.maximum(estimates, LEAST_S, out=estimates)
    bias = rows[..., -2:]
    np.log(np.divide(estimates[..., :2], estimates[..., 2:], out=bias), out=bias)
    return rows


class LatencyPredictor(Protocol):
    """Predicts TTFT and TPOT for every candidate. Safe from any thread."""

    @property
    def version(self) -> str:
        """Which artifact; empty for a rule without one."""
        ...

    def predict(
        self, replicas: NDArray[np.float32], request: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """TTFT from dispatch and TPOT, in seconds.

        Args:
            replicas: (..., n, len(REPLICA_FEATURES)).
            request: (..., len(REQUEST_FEATURES)).

        Returns:
            (..., n, 4), in the order of `LATENCY_OUTPUTS`; finite and positive, p50 <= p90.
        """
        ...


class AnalyticLatency:
    """The bias-corrected analytic estimate: what serves before any model exists."""

    @property
    def version(self) -> str:
        """None: a rule."""
        return ""

    def predict(
        self,
        replicas: NDArray[np.float32],
        request: NDArray[np.float32],  # noqa: ARG002
    ) -> NDArray[np.float64]:
        """See `LatencyPredictor.predict`."""
        if replicas.ndim == 2 and len(replicas) == 1:
            return self._predict_one(replicas[0])
        median = replicas[..., _CORRECTED]
        latencies = np.empty((*median.shape[:-1], len(LATENCY_OUTPUTS)))
        latencies[..., 0::2] = median
        np.multiply(latencies[..., 0::2], FALLBACK_SPREAD, out=latencies[..., 1::2])
        return _sound(latencies)

    def _predict_one(self, replica: NDArray[np.float32]) -> NDArray[np.float64]:
        """Of the candidate that was chosen: Python's numbers take a third of the time."""
        medians = [float(replica[column]) for column in _CORRECTED]
        values = [factor * median for median in medians for factor in (1.0, FALLBACK_SPREAD)]
        # As `_sound` has it.
        sound = [max(min(value, MOST_S), LEAST_S) if value == value else MOST_S for value in values]  # noqa: PLR0124
        return np.array([sound])


class LatencyModel(BundledModel):
    """The trained model."""

    kind = KIND
    file = LATENCY_FILE
    features = LATENCY_FEATURES

    def __init__(self, model: OnnxModel) -> None:
        super().__init__(model)
        self._fallback = AnalyticLatency()

    def predict(
        self, replicas: NDArray[np.float32], request: NDArray[np.float32]
    ) -> NDArray[np.float64]:
        """See `LatencyPredictor.predict`. Candidates the graph has no finite answer for get the
        analytic estimate."""
        rows = latency_rows(replicas, request)
        flat = self._model.run({"features": rows.reshape(-1, rows.shape[-1])})[0]
        if rows.shape[:-1] == (1,):  # a request, which was sent to this one
            one = flat[0].tolist()
            if math.isfinite(sum(one)):  # only if all are
                return np.array([[min(max(value, LEAST_S), MOST_S) for value in one]])
        answer = flat.astype(np.float64).reshape(*rows.shape[:-1], len(LATENCY_OUTPUTS))
        finite = np.isfinite(answer)
        if np.count_nonzero(finite) < finite.size:
            sound = finite.all(axis=-1, keepdims=True)
            answer = np.where(sound, answer, self._fallback.predict(replicas, request))
        # Not `np.clip`, which costs as much as a third of the graph.
        np.maximum(answer, LEAST_S, out=answer)
        return np.minimum(answer, MOST_S, out=answer)


def _sound(latencies: NDArray[np.float64]) -> NDArray[np.float64]:
    """Within the bounds, in place; what is not a number counts as the worst: `fmin` takes the other."""
    np.fmin(latencies, MOST_S, out=latencies)
    return np.maximum(latencies, LEAST_S, out=latencies)
