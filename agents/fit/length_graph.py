"""The output-length model as one ONNX graph: base, forests and shifts of `length_forests.py`."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from steersman.agents.fit.fitted import version_of
from steersman.agents.fit.forest import forest_node, make_model, parity_rows
from steersman.agents.fit.length_forests import QUANTILES, RANK, LengthForests
from steersman.agents.fit.onnx_meta import write_metadata
from steersman.predictors.features import LENGTH_FEATURES
from steersman.predictors.length import KIND, LENGTH_OUTPUTS, TENANT_BLEND, WORDING

Rows = NDArray[np.float32]


def length_graph(made: LengthForests, rows: Rows, *, seed: int) -> onnx.ModelProto:
    """features (n, len(LENGTH_FEATURES)) → `LENGTH_OUTPUTS` (n, 3), with its metadata.

    Args:
        rows: what it was fitted on: gives the range of the features and the rows to check it with.
    """
    nodes = [
        helper.make_node("Gather", ["features", "bases"], ["blend"], axis=1),
        helper.make_node("Greater", ["blend", "zero"], ["known"]),
        helper.make_node("Where", ["known", "blend", "constants"], ["usual"]),
        helper.make_node("Gather", ["features", "wording"], ["words"], axis=1),
        helper.make_node("Exp", ["words"], ["moved"]),
        helper.make_node("Mul", ["usual", "moved"], ["base"]),
        helper.make_node("Add", ["base", "shifts"], ["shifted"]),
        *_corrected(made),
        helper.make_node("Concat", ["quantiles", "rank"], [KIND], axis=1),
    ]
    constants: dict[str, NDArray[Any]] = {
        "bases": np.array(TENANT_BLEND, dtype=np.int64),
        "wording": np.array([WORDING], dtype=np.int64),
        "zero": np.zeros(1, dtype=np.float32),
        "one": np.ones(1, dtype=np.float32),
        "constants": np.array([made.constants], dtype=np.float32),
        "shifts": np.array([made.shifts], dtype=np.float32),
        "first": np.array([0], dtype=np.int64),
        "quantile_columns": np.array([0, 1], dtype=np.int64),
        "rank_column": np.array([2], dtype=np.int64),
    }
    used = {name for node in nodes for name in node.input}
    model = make_model(
        nodes,
        name=KIND,
        features=len(LENGTH_FEATURES),
        outputs=len(LENGTH_OUTPUTS),
        initializers=[
            numpy_helper.from_array(value, name) for name, value in constants.items() if name in used
        ],
    )
    text = {name: forest.model_to_string() for name, forest in made.forests.items()}
    checked = parity_rows(rows, 13, np.random.default_rng(seed))
    write_metadata(
        model,
        kind=KIND,
        version=version_of(text, *made.constants, *made.shifts),
        features=LENGTH_FEATURES,
        lower=rows.min(axis=0),
        upper=rows.max(axis=0),
        parity_inputs={"features": checked},
        parity_outputs=[made.predict(checked)],
    )
    return model


def _corrected(made: LengthForests) -> list[onnx.NodeProto]:
    """From `shifted` to `quantiles` (n, 2) and `rank` (n, 1); without a forest, nothing is added."""
    nodes = []
    if made.forests:
        # A target without trees is 0.
        forests = [made.forests.get(name) for name in (*QUANTILES, RANK)]
        nodes += [
            forest_node(forests, "features", "grown"),
            helper.make_node("Gather", ["grown", "quantile_columns"], ["added"], axis=1),
            helper.make_node("Add", ["shifted", "added"], ["quantiles"]),
        ]
    else:
        nodes.append(helper.make_node("Identity", ["shifted"], ["quantiles"]))
    if RANK in made.forests:
        nodes.append(helper.make_node("Gather", ["grown", "rank_column"], ["rank"], axis=1))
    else:
        nodes += [
            helper.make_node("Gather", ["quantiles", "first"], ["p50"], axis=1),
            helper.make_node("Max", ["p50", "one"], ["least_one"]),
            helper.make_node("Log", ["least_one"], ["rank"]),
        ]
    return nodes
