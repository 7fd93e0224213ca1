"""A small real policy graph: the lowest marginal cost wins, twice over."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

from steersman.agents.fit.onnx_meta import write_metadata
from steersman.agents.learned.served import KIND, POLICY_FEATURES
from steersman.predictors.bundle import POLICY_FILE, write_bundle
from steersman.predictors.features import (
    POOL_FEATURES,
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
)

_FLOAT, _BOOL = TensorProto.FLOAT, TensorProto.BOOL


def policy_graph(version: str, function: str = "Neg") -> bytes:
    """Two heads that both answer minus the marginal cost; trained, it says, on everything.

    With `Sqrt` for its function it answers the root of it: not a number where that is negative.
    """
    cost = REPLICA_INDEX["marginal_cost"]
    nodes = [
        helper.make_node("Gather", ["replicas", "column"], ["cost"], axis=2),
        helper.make_node(function, ["cost"], ["score"]),
        helper.make_node("Unsqueeze", ["score", "one"], ["head"]),
        helper.make_node("Concat", ["head", "head"], ["logits"], axis=1),
    ]
    inputs = [
        helper.make_tensor_value_info("replicas", _FLOAT, ["b", "n", len(REPLICA_FEATURES)]),
        helper.make_tensor_value_info("request", _FLOAT, ["b", len(REQUEST_FEATURES)]),
        helper.make_tensor_value_info("pool", _FLOAT, ["b", len(POOL_FEATURES)]),
        helper.make_tensor_value_info("mask", _BOOL, ["b", "n"]),
    ]
    constants = [
        helper.make_tensor("column", TensorProto.INT64, [], [cost]),
        helper.make_tensor("one", TensorProto.INT64, [1], [1]),
    ]
    output = helper.make_tensor_value_info("logits", _FLOAT, ["b", 2, "n"])
    graph = helper.make_graph(nodes, "policy", inputs, [output], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    rows = np.arange(3 * len(REPLICA_FEATURES), dtype=np.float32).reshape(1, 3, -1)
    answers = -rows if function == "Neg" else np.sqrt(rows)
    expected = np.repeat(answers[:, None, :, cost], 2, axis=1)
    write_metadata(
        model,
        kind=KIND,
        version=version,
        features=POLICY_FEATURES,
        lower=np.full(len(POLICY_FEATURES), -1e12),
        upper=np.full(len(POLICY_FEATURES), 1e12),
        parity_inputs={
            "replicas": rows,
            "request": np.zeros((1, len(REQUEST_FEATURES)), dtype=np.float32),
            "pool": np.zeros((1, len(POOL_FEATURES)), dtype=np.float32),
            "mask": np.ones((1, 3), dtype=np.bool_),
        },
        parity_outputs=[expected],
    )
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def policy_bundle(directory: Path, version: str) -> None:
    """Write a bundle with this policy and nothing else."""
    write_bundle(
        directory,
        {POLICY_FILE: policy_graph(version)},
        version=version,
        code_version="0",
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )
