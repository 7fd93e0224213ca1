"""What is known of every request of a trace before it is routed, as columns.

The same values as `predictors/features.py` gives for one request at a time, computed for a whole trace
at once: an episode of thousands of requests is prepared in milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from steersman.env.bulk import trace_length_features
from steersman.predictors.features import LENGTH_FEATURES, REQUEST_FEATURES
from steersman.predictors.identity import trace_identities
from steersman.predictors.objectives import slo_columns
from steersman.traces.errors import TraceError
from steersman.traces.schema import CLASS_WEIGHTS, Priority
from steersman.traces.trace import Trace

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class RequestTable:
    """n requests of a trace, as a router and an evaluator see them."""

    features: Float32
    """(n, len(REQUEST_FEATURES))"""
    output_p50: Float64
    """(n,): predicted."""
    weight: Float64
    ttft_slo_s: Float64
    tpot_slo_s: Float64
    identity: NDArray[np.int64]
    """(n, 2): see `predictors/identity.py`."""


def request_table(
    trace: Trace,
    state: Float64,
    *,
    output_quantiles: NDArray[np.floating] | None = None,
    length_features: Float32 | None = None,
) -> RequestTable:
    """Prepare a trace for a pool.

    Args:
        state: (replicas, STATE_WIDTH) of the pool: service levels depend on its hardware.
        output_quantiles: (n, 2) predicted p50 and p90 of output tokens; None: the quantiles of all
            outputs of the trace, the same for every request.
        length_features: (n, len(LENGTH_FEATURES)), if the caller has them; None:
            `trace_length_features` (env/bulk.py).

    Raises:
        TraceError: an output length is unknown.
    """
    n = len(trace)
    unknown = np.flatnonzero(trace.output_tokens < 0)
    if len(unknown):
        row = int(unknown[0])
        raise TraceError(
            f"trace '{trace.name}': request '{trace.request_ids[row]}' has no output_tokens; "
            "the cluster model needs them, drop the row or fill it in"
        )
    if output_quantiles is None:
        output_quantiles = np.tile(
            np.quantile(np.maximum(trace.output_tokens, 1), (0.5, 0.9)) if n else np.ones(2), (n, 1)
        )
    if output_quantiles.shape != (n, 2):
        raise ValueError(f"output_quantiles has shape {output_quantiles.shape}, expected ({n}, 2)")
    if length_features is None:
        length_features = trace_length_features(trace)
    ttft_slo_s, tpot_slo_s = slo_columns(state, trace.input_tokens.astype(np.float64))
    features = np.empty((n, len(REQUEST_FEATURES)), dtype=np.float32)
    known = len(LENGTH_FEATURES)
    features[:, :known] = length_features
    features[:, known : known + 2] = output_quantiles
    features[:, known + 2] = ttft_slo_s
    features[:, known + 3] = tpot_slo_s
    weights = np.array([CLASS_WEIGHTS[priority] for priority in Priority])
    return RequestTable(
        features=features,
        output_p50=np.ascontiguousarray(output_quantiles[:, 0], dtype=np.float64),
        weight=weights[trace.priority],
        ttft_slo_s=ttft_slo_s,
        tpot_slo_s=np.full(n, tpot_slo_s),
        identity=np.ascontiguousarray(trace_identities(trace)),
    )
