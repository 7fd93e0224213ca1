"""A whole trace at once: the same features and predictions as one request at a time, without objects."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.env.past import causal_past
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.length import LengthPredictor
from steersman.traces.trace import Trace

CHUNK_ROWS = 8_192
"""Rows predicted in one call: bounds memory."""


def trace_length_features(trace: Trace, past: NDArray[np.float64] | None = None) -> NDArray[np.float32]:
    """`LENGTH_FEATURES` of every row, (len(trace), len(LENGTH_FEATURES)); equal to `length_features`.

    Args:
        trace: n requests.
        past: (n, len(HISTORY_FEATURES)); by default what a service would have known
            (`past.causal_past`).
    """
    if past is None:
        past = causal_past(trace)
    known_hour = ~np.isnan(trace.hour_of_day)
    angle = 2.0 * np.pi * np.where(known_hour, trace.hour_of_day, 0.0) / 24.0
    columns = (
        trace.input_tokens,
        trace.max_tokens,
        trace.stream,
        trace.priority,
        trace.tools,
        trace.tool_choice,
        trace.has_code,
        trace.question_type,
        trace.question_bytes,
        trace.asked_tokens,
        trace.wording,
        trace.turns,
        np.diff(trace.block_offsets),
        trace.lora >= 0,
        np.where(known_hour, np.sin(angle), 0.0),
        np.where(known_hour, np.cos(angle), 0.0),
        *past.T,
    )
    features = np.empty((len(trace), len(LENGTH_FEATURES)), dtype=np.float32)
    for i, column in enumerate(columns):
        features[:, i] = column
    return features


def output_quantiles(trace: Trace, predictor: LengthPredictor) -> NDArray[np.float64]:
    """Predicted output tokens of every row, (len(trace), 2): p50 and p90. Causal, see `past`."""
    features = trace_length_features(trace)
    predicted = np.empty((len(trace), 2))
    for start in range(0, len(trace), CHUNK_ROWS):
        part = slice(start, start + CHUNK_ROWS)
        predicted[part] = predictor.predict(features[part])[:, :2]
    return predicted
