"""What serves at first: a weighted least-requests rule, as most clusters have it today, as a bundle.

The weight of a replica is the speed of its hardware as it was measured once: requests in flight (and the
one to come) times the time of a decode iteration, the least first. It learns nothing.
"""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from steersman import __version__
from steersman.predictors.bundle import POLICY_FILE, Bundle, write_bundle
from steersman.predictors.features import (
    POOL_FEATURES,
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
)

VERSION = "weighted-least-requests"
WIDEST = 1e30
"""It was not trained, so nothing is outside of what it was trained on."""
_COLUMNS = (REPLICA_INDEX["inflight"], REPLICA_INDEX["decode_base_s"])


def incumbent(directory: Path, *, now: datetime) -> Bundle:
    """The rule as a bundle, written to a directory."""
    return write_bundle(
        directory,
        {POLICY_FILE: _graph()},
        version=f"{now:%Y%m%d-%H%M%S}-{VERSION}",
        code_version=__version__,
        created=now,
        trained_on={"rule": VERSION},
    )


def _graph() -> bytes:
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    from steersman.agents.fit.onnx_meta import write_metadata
    from steersman.agents.learned.graph import INPUTS, IR_VERSION, OPSET, OUTPUT
    from steersman.agents.learned.served import KIND, MASKED, POLICY_FEATURES

    info = helper.make_tensor_value_info
    constants: dict[str, NDArray[Any]] = {
        "inflight_column": np.array(_COLUMNS[0], dtype=np.int64),
        "speed_column": np.array(_COLUMNS[1], dtype=np.int64),
        "one": np.array(1.0, dtype=np.float32),
        "axis": np.array([1], dtype=np.int64),
        "masked": np.array(MASKED, dtype=np.float32),
    }
    graph = helper.make_graph(
        [
            helper.make_node("Gather", ["replicas", "inflight_column"], ["inflight"], axis=2),
            helper.make_node("Gather", ["replicas", "speed_column"], ["iteration_s"], axis=2),
            helper.make_node("Add", ["inflight", "one"], ["then"]),
            helper.make_node("Mul", ["then", "iteration_s"], ["cost"]),
            helper.make_node("Neg", ["cost"], ["scores"]),
            helper.make_node("Unsqueeze", ["scores", "axis"], ["one_head"]),
            helper.make_node("Where", ["mask", "one_head", "masked"], [OUTPUT]),
        ],
        "weights",
        [
            info("replicas", TensorProto.FLOAT, [1, "n", len(REPLICA_FEATURES)]),
            info("request", TensorProto.FLOAT, [1, len(REQUEST_FEATURES)]),
            info("pool", TensorProto.FLOAT, [1, len(POOL_FEATURES)]),
            info("mask", TensorProto.BOOL, [1, "n"]),
        ],
        [info(OUTPUT, TensorProto.FLOAT, [1, 1, "n"])],
        initializer=[numpy_helper.from_array(value, name) for name, value in constants.items()],
    )
    model = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    replicas = np.random.default_rng(0).uniform(0.0, 5.0, (2, 3, len(REPLICA_FEATURES)))
    inputs = {
        "replicas": replicas.astype(np.float32),
        "request": np.zeros((2, len(REQUEST_FEATURES)), dtype=np.float32),
        "pool": np.zeros((2, len(POOL_FEATURES)), dtype=np.float32),
        "mask": np.array([[True, True, True], [True, False, True]]),
    }
    cost = (inputs["replicas"][..., _COLUMNS[0]] + 1.0) * inputs["replicas"][..., _COLUMNS[1]]
    width = len(POLICY_FEATURES)
    write_metadata(
        model,
        kind=KIND,
        version=VERSION,
        features=POLICY_FEATURES,
        lower=np.full(width, -WIDEST),
        upper=np.full(width, WIDEST),
        parity_inputs={name: inputs[name] for name in INPUTS},
        parity_outputs=[np.where(inputs["mask"], -cost, MASKED)[:, None, :]],
    )
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data
