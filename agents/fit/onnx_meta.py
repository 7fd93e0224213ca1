"""Writing into an ONNX graph what `predictors/onnx_model.py` checks when it loads it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from steersman.predictors.onnx_model import PREFIX


def write_metadata(
    model: onnx.ModelProto,
    *,
    kind: str,
    version: str,
    features: Sequence[str],
    lower: NDArray[Any],
    upper: NDArray[Any],
    parity_inputs: Mapping[str, NDArray[Any]],
    parity_outputs: Sequence[NDArray[Any]],
    extra: Mapping[str, str] | None = None,
) -> None:
    """Set the graph's `steersman.*` metadata, replacing what was there.

    Args:
        model: changed in place.
        kind: `length`, `latency` or `policy`.
        version: which artifact, for logs.
        features: names of the input columns, in order.
        lower, upper: (len(features),), the range of each feature in training.
        parity_inputs: a few rows (choose extremes too) for every input of the graph, by its name.
        parity_outputs: for every output of the graph, what the model it was exported from (not the
            graph) answers to them.
        extra: further entries, without the prefix.

    Raises:
        ValueError: a bound or a parity value is not finite: JSON has no word for it.
    """
    entries = {
        "kind": kind,
        "version": version,
        "features": _json(list(features)),
        "lower": _json(_numbers(lower)),
        "upper": _json(_numbers(upper)),
        "parity": _json(
            {
                "inputs": {name: _numbers(rows) for name, rows in parity_inputs.items()},
                "outputs": [_numbers(rows) for rows in parity_outputs],
            }
        ),
        **(extra or {}),
    }
    kept = [(p.key, p.value) for p in model.metadata_props if not p.key.startswith(PREFIX)]
    del model.metadata_props[:]
    for key, value in [*kept, *((PREFIX + key, value) for key, value in entries.items())]:
        entry = model.metadata_props.add()
        entry.key, entry.value = key, value


def _numbers(values: NDArray[Any]) -> Any:
    array = np.asarray(values)
    return array.tolist() if array.dtype.kind in "biu" else array.astype(np.float64).tolist()


def _json(value: Any) -> str:
    return json.dumps(value, allow_nan=False, separators=(",", ":"))
