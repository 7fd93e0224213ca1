"""The latency model as one ONNX graph: four forests in a node, then `correction.py`'s formula."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from steersman.agents.fit.correction import Correction, Rows
from steersman.agents.fit.fitted import FittedModel, version_of
from steersman.agents.fit.forest import forest_node, make_model, parity_rows
from steersman.agents.fit.onnx_meta import write_metadata
from steersman.predictors.latency import (
    KIND,
    LATENCY_FEATURES,
    LATENCY_INDEX,
    LATENCY_OUTPUTS,
    LEAST_S,
    LatencyModel,
)


def export(
    corrections: Sequence[Correction], rows: Rows, metrics: dict[str, float], seed: int
) -> FittedModel:
    """The served model, checked by loading it.

    Args:
        corrections: of TTFT and of TPOT.
        rows: what they were fitted on: gives the features' ranges and the rows of the parity check.
        metrics: kept with it.
        seed: of the choice of parity rows.

    Raises:
        ArtifactError: the graph does not answer what the corrections do.
    """
    forests = [forest for each in corrections for forest in (each.forest, each.spread)]
    model = make_model(
        [forest_node(forests, "features", "leaves"), *_formula()],
        name=KIND,
        features=len(LATENCY_FEATURES),
        outputs=len(LATENCY_OUTPUTS),
        initializers=_constants(corrections),
    )
    text = {each.target: each.forest.model_to_string() for each in corrections}
    text |= {f"{each.target}-spread": each.spread.model_to_string() for each in corrections}
    checked = parity_rows(rows, 13, np.random.default_rng(seed))
    write_metadata(
        model,
        kind=KIND,
        version=version_of(text, *(value for each in corrections for value in each.constants)),
        features=LATENCY_FEATURES,
        lower=rows.min(axis=0),
        upper=rows.max(axis=0),
        parity_inputs={"features": checked},
        parity_outputs=[np.concatenate([each.predict(checked) for each in corrections], axis=1)],
    )
    data: bytes = model.SerializeToString()
    LatencyModel.from_bytes(data)  # what would not load is not handed out
    return FittedModel(KIND, data, text, metrics)


def _formula() -> list[NodeProto]:
    """From leaves (rows, 4) to latencies (rows, 4), each column for itself: p50 has a width of 0."""
    node = helper.make_node
    return [
        node("Gather", ["features", "estimate_columns"], ["estimates"], axis=1),
        node("Max", ["estimates", "least_s"], ["bounded"]),
        node("Log", ["bounded"], ["log_estimates"]),
        node("Mul", ["log_estimates", "slopes"], ["powers"]),
        node("Gather", ["leaves", "correction_columns"], ["raw_corrections"], axis=1),
        node("Mul", ["raw_corrections", "weights"], ["corrections"]),
        node("Gather", ["leaves", "spread_columns"], ["log_spreads"], axis=1),
        node("Exp", ["log_spreads"], ["spreads"]),
        node("Mul", ["spreads", "widths"], ["above"]),
        node("Sum", ["powers", "corrections", "centres", "above"], ["log_answers"]),
        node("Exp", ["log_answers"], [KIND]),
    ]


def _constants(corrections: Sequence[Correction]) -> list[TensorProto]:
    values = {
        "slopes": [each.slope for each in corrections for _ in range(2)],
        "weights": [each.weight for each in corrections for _ in range(2)],
        "centres": [each.centre for each in corrections for _ in range(2)],
        "widths": [width for each in corrections for width in (0.0, each.width)],
    }
    columns = {
        "estimate_columns": [
            LATENCY_INDEX[f"{each.target}_s"] for each in corrections for _ in range(2)
        ],
        "correction_columns": [2 * i for i in range(len(corrections)) for _ in range(2)],
        "spread_columns": [2 * i + 1 for i in range(len(corrections)) for _ in range(2)],
    }
    return [
        numpy_helper.from_array(np.array(LEAST_S, dtype=np.float32), "least_s"),
        *(numpy_helper.from_array(np.array(v, dtype=np.float32), name) for name, v in values.items()),
        *(numpy_helper.from_array(np.array(v, dtype=np.int64), name) for name, v in columns.items()),
    ]
