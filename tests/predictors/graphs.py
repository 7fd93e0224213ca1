"""Small real ONNX graphs for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from steersman.agents.fit.onnx_meta import write_metadata

FEATURES = ("a", "b", "c")
ROWS = np.array([[1.0, 2.0, 3.0], [0.0, -1.0, 10.0]], dtype=np.float32)


def double_graph(width: int = 3, op: str = "Add") -> onnx.ModelProto:
    """x → x + x (or x op x), (rows, width) float32."""
    graph = helper.make_graph(
        [helper.make_node(op, ["features", "features"], ["answer"])],
        "double",
        [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["rows", width])],
        [helper.make_tensor_value_info("answer", TensorProto.FLOAT, ["rows", width])],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def double_model(
    *,
    kind: str = "double",
    features: tuple[str, ...] = FEATURES,
    outputs: list[NDArray[Any]] | None = None,
    op: str = "Add",
    extra: dict[str, str] | None = None,
) -> bytes:
    """`double_graph` with its metadata, serialised."""
    model = double_graph(op=op)
    write_metadata(
        model,
        kind=kind,
        version="1",
        features=features,
        lower=np.zeros(len(features)),
        upper=np.ones(len(features)),
        parity_inputs={"features": ROWS},
        parity_outputs=[ROWS * 2] if outputs is None else outputs,
        extra=extra,
    )
    data: bytes = model.SerializeToString()
    return data


def with_entry(data: bytes, key: str, value: str | None) -> bytes:
    """Replace one metadata entry; None removes it."""
    model = onnx.load_model_from_string(data)
    for entry in list(model.metadata_props):
        if entry.key == key:
            model.metadata_props.remove(entry)
    if value is not None:
        added = model.metadata_props.add()
        added.key, added.value = key, value
    changed: bytes = model.SerializeToString()
    return changed
