"""`RoutingNetwork.forward` written as an ONNX graph for one observation: what the router computes.

Exported operator by operator the network takes 97 kernels, and for a pool of replicas most of their time
is the calls, not the arithmetic. Here it takes 72, by rewriting that changes no answer but for rounding:

- the gap to the cheapest is one more feature to compress, with mean 0, deviation 1 and no clip;
- clipping comes before normalisation, at ``mean ± clip * std``, and the normalisation is part of the
  first layer: ``W (y - mean) / std = (W / std) y - (W / std) mean``;
- with a batch of 1, what depends on the request or the pool alone is one row, which a `Gemm` adds to
  every replica's; the runtime does a `Gemm` and the `Relu` after it in one kernel;
- the mean over the pool and each head's product with its last layer are matrix products too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper
from torch import Tensor

from steersman.agents.learned.network import CLIP, Compress, RoutingNetwork
from steersman.agents.learned.served import MASKED
from steersman.agents.learned.weighing import (
    FIRST_CANDIDATE,
    FREE_COLUMNS,
    FREE_WEIGHTS,
    MOST_CHANGE,
    MOST_SIGNAL,
    OF_CANDIDATE,
    OF_CONTEXT,
    SHAPE,
)
from steersman.predictors.features import (
    POOL_FEATURES,
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
)
from steersman.traces.errors import ArtifactError

INPUTS = ("replicas", "request", "pool", "mask")
OUTPUT = "heads"
OPSET, IR_VERSION = 20, 10

_GAP = len(REPLICA_FEATURES)
"""Column of the gap among what is compressed."""
_UNBOUNDED = np.finfo(np.float32).max


def policy_graph(network: RoutingNetwork) -> onnx.ModelProto:
    """From `INPUTS`, with a batch dimension of 1, to `OUTPUT`, (1, heads, n)."""
    heads = network.head_out.shape[0]
    info = helper.make_tensor_value_info
    constants = [numpy_helper.from_array(value, name) for name, value in _constants(network).items()]
    graph = helper.make_graph(
        [*_cost(), *_gap(), *_trunk(), *_pooled(), *_heads()],
        "policy",
        [
            info("replicas", TensorProto.FLOAT, [1, "n", len(REPLICA_FEATURES)]),
            info("request", TensorProto.FLOAT, [1, len(REQUEST_FEATURES)]),
            info("pool", TensorProto.FLOAT, [1, len(POOL_FEATURES)]),
            info("mask", TensorProto.BOOL, [1, "n"]),
        ],
        [info(OUTPUT, TensorProto.FLOAT, [1, heads, "n"])],
        initializer=constants,
    )
    return helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )


def coefficients_of(model: onnx.ModelProto) -> NDArray[np.float64]:
    """The coefficients of `weighed_cost` in a `policy_graph`, SHAPE.

    Raises:
        ArtifactError: it is not such a graph, or one of another version.
    """
    known = {one.name: numpy_helper.to_array(one) for one in model.graph.initializer}
    try:
        parts = [known["biases"][None], known["shared_slopes"], known["own_slopes"]]
        found = np.concatenate(parts).T[1:].astype(np.float64)
    except (KeyError, ValueError):
        found = np.empty(0)
    if found.shape != SHAPE:
        raise ArtifactError(
            "the policy's graph has no weights of cost terms that this version knows; train it again"
        )
    return found


def _cost() -> list[NodeProto]:
    """`cost`, (1, n): `weighed_cost`, whose first factor is the marginal cost's own."""
    return [
        _node("Concat", ["request", "pool"], "context", axis=1),
        *_signals("context", "shared", axis=1),
        _node("Gather", ["replicas", "own_columns"], "own_there", axis=2),
        _node("Flatten", ["own_there"], "own_rows", axis=2),
        *_signals("own_rows", "own"),
        _node("Gemm", ["shared_signals", "shared_slopes", "biases"], "shared_change"),
        _node("Gemm", ["own_signals", "own_slopes", "shared_change"], "free_change"),
        _node("Max", ["free_change", "change_least"], "change_raised"),
        _node("Min", ["change_raised", "change_most"], "change"),
        _node("Exp", ["change"], "factors"),
        _node("Mul", ["factors", "term_weights"], "weights_there"),
        _node("Add", ["weights_there", "weights_less"], "weights_added"),
        _node("Gather", ["replicas", "cost_columns"], "cost_terms", axis=2),
        _node("Mul", ["cost_terms", "weights_added"], "cost_parts"),
        _node("ReduceSum", ["cost_parts", "last_axis"], "cost", keepdims=0),
    ]


def _signals(source: str, name: str, axis: int | None = None) -> list[NodeProto]:
    """`Signals.read`, to `NAME_signals`; with an axis, of the columns `NAME_columns` along it."""
    known = f"{name}_known" if axis is not None else source
    gather = [_node("Gather", [source, f"{name}_columns"], known, axis=axis)]
    return [
        *(gather if axis is not None else []),
        _node("Max", [known, f"{name}_lowest"], f"{name}_from_least"),
        _node("Add", [f"{name}_from_least", f"{name}_floors"], f"{name}_above"),
        _node("Log", [f"{name}_above"], f"{name}_log_above"),
        _node("Mul", [f"{name}_log_above", f"{name}_scales"], f"{name}_in_widths"),
        _node("Add", [f"{name}_in_widths", f"{name}_shifts"], f"{name}_shifted"),
        _node("Max", [f"{name}_shifted", "signal_least"], f"{name}_bounded"),
        _node("Min", [f"{name}_bounded", "signal_most"], f"{name}_signals"),
    ]


def _gap() -> list[NodeProto]:
    """How much dearer than the cheapest candidate, beside the other features: `known`, (1, n, k + 1).

    Where nobody may be chosen the cheapest is infinitely dear and all gaps are 0.
    """
    return [
        _node("Where", ["mask", "cost", "infinity"], "allowed_cost"),
        _node("ReduceMin", ["allowed_cost", "last_axis"], "cheapest", keepdims=1),
        _node("Sub", ["cost", "cheapest"], "dearer"),
        _node("Relu", ["dearer"], "gap"),
        _node("Unsqueeze", ["gap", "last_axis"], "gap_column"),
        _node("Concat", ["replicas", "gap_column"], "known", axis=2),
    ]


def _trunk() -> list[NodeProto]:
    """`hidden`, (n, width)."""
    return [
        *_clipped("known", "replica"),
        _node("Flatten", ["replica_clipped"], "replica_rows", axis=2),
        *_clipped("context", "context"),
        _node("Gemm", ["context_clipped", "context_weight", "trunk_bias"], "context_row"),
        _node("Gemm", ["replica_rows", "replica_weight", "context_row"], "first"),
        _node("Relu", ["first"], "first_on"),
        _node("Gemm", ["first_on", "hidden_weight", "hidden_bias"], "second"),
        _node("Relu", ["second"], "hidden"),
    ]


def _clipped(source: str, name: str) -> list[NodeProto]:
    """`Compress.forward` but for the normalisation, from `source` to `NAME_clipped`."""
    return [
        _node("Mul", [source, f"{name}_scale"], f"{name}_scaled"),
        _node("Abs", [f"{name}_scaled"], f"{name}_magnitude"),
        _node("Add", [f"{name}_magnitude", "one"], f"{name}_above_one"),
        _node("Log", [f"{name}_above_one"], f"{name}_log"),
        _node("Sign", [f"{name}_scaled"], f"{name}_sign"),
        _node("Mul", [f"{name}_sign", f"{name}_log"], f"{name}_compressed"),
        _node("Max", [f"{name}_compressed", f"{name}_least"], f"{name}_raised"),
        _node("Min", [f"{name}_raised", f"{name}_most"], f"{name}_clipped"),
    ]


def _pooled() -> list[NodeProto]:
    """`pooled`, (1, width): the mean of `hidden` over whom the mask allows."""
    return [
        _node("Cast", ["mask"], "weights", to=TensorProto.FLOAT),
        _node("MatMul", ["weights", "hidden"], "sum"),
        _node("ReduceSum", ["weights", "last_axis"], "count", keepdims=1),
        _node("Max", ["count", "one"], "at_least_one"),
        _node("Div", ["sum", "at_least_one"], "pooled"),
    ]


def _heads() -> list[NodeProto]:
    """`heads`, (1, heads, n)."""
    return [
        _node("Gemm", ["pooled", "pool_weight", "head_bias"], "pool_row"),
        _node("Gemm", ["hidden", "head_weight", "pool_row"], "mixed"),
        _node("Relu", ["mixed"], "mixed_on"),
        _node("Gemm", ["out_weight", "mixed_on"], "residual", transB=1),
        _node("Tanh", ["residual"], "bounded"),
        _node("Mul", ["bounded", "residual_limit"], "moved"),
        _node("Gather", ["replica_clipped", "gap_index"], "log_gap", axis=2),
        _node("Mul", ["log_gap", "sharpness"], "dearness"),
        _node("Sub", ["moved", "dearness"], "logits"),
        _node("Where", ["mask", "logits", "masked"], "allowed"),
        _node("Unsqueeze", ["allowed", "first_axis"], OUTPUT),
    ]


def _constants(network: RoutingNetwork) -> dict[str, NDArray[Any]]:
    replicas, context = network.compress_replicas, network.compress_context
    scale = np.append(_array(replicas.scale), 1.0 / network.temperature)
    mean, std = np.append(_array(replicas.mean), 0.0), np.append(_array(replicas.std), 1.0)
    replica_weight, replica_shift = _normalised(_array(network.from_replica.weight), mean, std)
    context_weight, context_shift = _normalised(
        _array(network.from_context.weight), _array(context.mean), _array(context.std)
    )
    least, most = _bounds(replicas)
    context_least, context_most = _bounds(context)
    real = _weighing(network) | {
        "infinity": np.array(np.inf),
        "one": np.array(1.0),
        "replica_scale": scale,
        "replica_least": np.append(least, -_UNBOUNDED),
        "replica_most": np.append(most, _UNBOUNDED),
        "replica_weight": replica_weight,
        "context_scale": _array(context.scale),
        "context_least": context_least,
        "context_most": context_most,
        "context_weight": context_weight,
        "trunk_bias": _array(network.from_replica.bias) + replica_shift + context_shift,
        "hidden_weight": _array(network.hidden.weight).T,
        "hidden_bias": _array(network.hidden.bias),
        "head_weight": _array(network.head_from_replica.weight).T,
        "head_bias": _array(network.head_from_replica.bias),
        "pool_weight": _array(network.head_from_pool.weight).T,
        "out_weight": _apart(_array(network.head_out)) / network.residual_limit,
        "residual_limit": np.array(network.residual_limit),
        "sharpness": np.array(network.sharpness),
        "masked": np.array(MASKED),
    }
    whole = {
        "cost_columns": np.array([REPLICA_INDEX["marginal_cost"], *FREE_COLUMNS]),
        "shared_columns": np.array(OF_CONTEXT.columns),
        "own_columns": np.array(OF_CANDIDATE.columns),
        "gap_index": np.array(_GAP),
        "first_axis": np.array([0]),
        "last_axis": np.array([-1]),
    }
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in real.items()} | {
        name: value.astype(np.int64) for name, value in whole.items()
    }


def _weighing(network: RoutingNetwork) -> dict[str, NDArray[Any]]:
    """The marginal cost counts exp(0) * 1 + 0, a free term default * exp(change) - default."""
    coefficients = np.concatenate([np.zeros((1, SHAPE[1])), _array(network.coefficients)])
    defaults = np.array(FREE_WEIGHTS)
    constants = {
        "biases": coefficients[:, 0],
        "shared_slopes": coefficients[:, 1:FIRST_CANDIDATE].T,
        "own_slopes": coefficients[:, FIRST_CANDIDATE:].T,
        "signal_least": np.array(-MOST_SIGNAL),
        "signal_most": np.array(MOST_SIGNAL),
        "change_least": np.array(-MOST_CHANGE),
        "change_most": np.array(MOST_CHANGE),
        "term_weights": np.append(1.0, defaults),
        "weights_less": np.append(0.0, -defaults),
    }
    for name, signals in (("shared", OF_CONTEXT), ("own", OF_CANDIDATE)):
        constants[f"{name}_lowest"] = _array(signals.least)
        constants[f"{name}_floors"] = _array(signals.floors)
        constants[f"{name}_scales"] = _array(signals.scales)
        constants[f"{name}_shifts"] = _array(signals.shifts)
    return constants


def _normalised(
    weight: NDArray[np.float64], mean: NDArray[np.float64], std: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A layer's weight (out, in), normalisation before it, as (in, out), and what that adds, (out,)."""
    folded = weight / std
    return folded.T, -(folded @ mean)


def _bounds(compress: Compress) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Between which compressed values are clipped."""
    mean, reach = _array(compress.mean), CLIP * _array(compress.std)
    return mean - reach, mean + reach


def _apart(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """(heads, width) → (heads, heads * width): each head looks at its own part."""
    heads, width = rows.shape
    blocks = np.zeros((heads, heads, width))
    blocks[np.arange(heads), np.arange(heads)] = rows
    return blocks.reshape(heads, heads * width)


def _array(tensor: Tensor) -> NDArray[np.float64]:
    return tensor.detach().cpu().double().numpy()


def _node(kind: str, inputs: Sequence[str], output: str, **attributes: Any) -> NodeProto:
    return helper.make_node(kind, list(inputs), [output], **attributes)
