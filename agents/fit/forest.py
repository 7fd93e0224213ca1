"""LightGBM forests as one ONNX node.

All forests of a model (quantiles, or TTFT and TPOT) become one TreeEnsembleRegressor with a target
each, which onnxruntime walks in a single call. Routing is exact: features are float32, LightGBM's
thresholds are float64, and rounding a threshold *down* to float32 keeps every comparison
`x <= threshold` as it was; rounding to the nearest, as the usual converters do, sends rows on a
boundary to the other side.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import lightgbm as lgb
import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

ML_OPSET = 3
OPSET = 17
IR_VERSION = 8
"""Old enough for every onnxruntime that Steersman supports."""


REPEATABLE: Mapping[str, Any] = {
    "deterministic": True,
    "force_row_wise": True,
    "num_threads": 1,
    "verbose": -1,
}
"""LightGBM: the same rows and seed give the same forest on every machine, without talk."""
EXPORTABLE: Mapping[str, Any] = {"feature_pre_filter": False, "use_missing": False, **REPEATABLE}
"""And one that `forest_node` can write down."""


def forest_node(forests: Sequence[lgb.Booster | None], source: str, target: str) -> onnx.NodeProto:
    """One node that answers (rows, len(forests)) from `source` (rows, features), float32.

    None instead of a forest: that target is 0.
    Numerical splits only; features are never NaN, so missing-value directions do not matter.
    """
    nodes: dict[str, list[Any]] = {
        name: []
        for name in (
            "treeids",
            "nodeids",
            "featureids",
            "values",
            "modes",
            "truenodeids",
            "falsenodeids",
        )
    }
    leaves: dict[str, list[Any]] = {name: [] for name in ("treeids", "nodeids", "ids", "weights")}
    tree = 0
    for output, forest in enumerate(forests):
        if forest is None:
            continue
        for info in forest.dump_model()["tree_info"]:
            _add_tree(info["tree_structure"], tree, output, nodes, leaves)
            tree += 1
    ensemble = helper.make_node("TreeEnsembleRegressor", [source], [target], domain="ai.onnx.ml")
    attributes: dict[str, Any] = {
        "n_targets": len(forests),
        **{f"nodes_{name}": values for name, values in nodes.items()},
        **{f"target_{name}": values for name, values in leaves.items()},
    }
    ensemble.attribute.extend(helper.make_attribute(name, value) for name, value in attributes.items())
    return ensemble


def predict(forest: lgb.Booster, rows: NDArray[np.float32]) -> NDArray[np.float64]:
    """LightGBM's own answer, (rows,)."""
    return np.asarray(forest.predict(rows, num_threads=1), dtype=np.float64)


def make_model(
    nodes: Sequence[onnx.NodeProto],
    *,
    name: str,
    features: int,
    outputs: int,
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A checked model from `features` (rows, features) to an output `name` (rows, outputs), float32."""
    graph = helper.make_graph(
        list(nodes),
        name,
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", features])],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", outputs])],
        initializer=list(initializers),
    )
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("ai.onnx.ml", ML_OPSET)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
    onnx.checker.check_model(model)
    return model


def round_down(threshold: float) -> float:
    """The largest float32 that is not above `threshold`."""
    nearest = np.float32(threshold)
    if float(nearest) > threshold:
        nearest = np.nextafter(nearest, np.float32(-np.inf))
    return float(nearest)


def parity_rows(rows: NDArray[np.float32], count: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """A few rows to check an exported model with: some at random, and the corners of their range."""
    corners = np.stack([rows.min(axis=0), np.median(rows, axis=0), rows.max(axis=0)])
    drawn = rows[rng.integers(len(rows), size=count)]
    return np.concatenate([corners, drawn]).astype(np.float32)


def _add_tree(
    root: dict[str, Any],
    tree: int,
    output: int,
    nodes: dict[str, list[Any]],
    leaves: dict[str, list[Any]],
) -> None:
    pending = [root]
    numbered = 0
    while pending:
        node = pending.pop(0)
        number = numbered
        numbered += 1
        nodes["treeids"].append(tree)
        nodes["nodeids"].append(number)
        if "leaf_value" in node:
            _add_split(nodes, 0, 0.0, "LEAF", 0, 0)
            leaves["treeids"].append(tree)
            leaves["nodeids"].append(number)
            leaves["ids"].append(output)
            leaves["weights"].append(float(node["leaf_value"]))
        else:
            # Breadth first: the children are numbered after everything that waits.
            left = numbered + len(pending)
            _add_split(
                nodes, node["split_feature"], round_down(node["threshold"]), "BRANCH_LEQ", left, left + 1
            )
            pending += [node["left_child"], node["right_child"]]


def _add_split(
    nodes: dict[str, list[Any]], feature: int, value: float, mode: str, yes: int, no: int
) -> None:
    nodes["featureids"].append(feature)
    nodes["values"].append(value)
    nodes["modes"].append(mode)
    nodes["truenodeids"].append(yes)
    nodes["falsenodeids"].append(no)
