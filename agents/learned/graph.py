"""`RoutingNetwork.forward` written as an ONNX graph for one observation: what the router computes.

Exported operator by operator the network takes 97 kernels, and for a pool of replicas most of their time
is the calls, not the arithmetic. Here it takes 43, by rewriting that changes no answer but for rounding:

- what is clipped after a logarithm is clipped before it, once, and normalisation is part of the layer
  that follows: ``W (y - mean) / std = (W / std) y - (W / std) mean``; so signals and features alike
  are ``log(clip(x * scale) + offset)``;
- signals of the context and its compressed features are one row, of the request and the pool twice;
- the marginal cost is the sum of its terms, so that `weighed_cost` is a sum of exp(change + log weight)
  times a term; costs are in units of the temperature;
- with a batch of 1, what depends on the request or the pool alone is one row, which a `Gemm` adds to
  every replica's, and the gap to the cheapest, a feature like the others, is added by another; the
  runtime does a `Gemm` and the `Relu` after it in one kernel;
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
    CONTEXT,
    FIRST_CANDIDATE,
    MOST_CHANGE,
    MOST_SIGNAL,
    OF_CANDIDATE,
    OF_CONTEXT,
    SHAPE,
    Signals,
)
from steersman.predictors import analytic
from steersman.predictors.features import (
    COST_TERMS,
    POOL_FEATURES,
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
)
from steersman.traces.errors import ArtifactError

INPUTS = ("replicas", "request", "pool", "mask")
OUTPUT = "heads"
OPSET, IR_VERSION = 20, 10

_UNBOUNDED = np.finfo(np.float32).max
_WEIGHTS = np.array(analytic.TERM_WEIGHTS)
_SHARED_ROWS = [len(CONTEXT) + column for column in OF_CONTEXT.columns]
"""Where the context's signals are among `context_logs`."""


def policy_graph(network: RoutingNetwork) -> onnx.ModelProto:
    """From `INPUTS`, with a batch dimension of 1, to `OUTPUT`, (1, heads, n)."""
    heads = network.head_out.shape[0]
    info = helper.make_tensor_value_info
    constants = [numpy_helper.from_array(value, name) for name, value in _constants(network).items()]
    graph = helper.make_graph(
        [*_inputs(), *_cost(), *_gap(), *_trunk(), *_pooled(), *_heads(network)],
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
        shared = known["shared_slopes"][_SHARED_ROWS] / _array(OF_CONTEXT.scales)[:, None]
        own = known["own_slopes"] / _array(OF_CANDIDATE.scales)[:, None]
        biases = known["biases"] - _array(OF_CONTEXT.shifts) @ shared - _array(OF_CANDIDATE.shifts) @ own
        # Nothing is added to the first term's but the temperature that all are divided by.
        biases = biases - biases[0] - np.log(_WEIGHTS)
        found = np.concatenate([biases[None], shared, own]).T[1:].astype(np.float64)
    except (IndexError, KeyError, ValueError):
        found = np.empty(0)
    if found.shape != SHAPE:
        raise ArtifactError(
            "the policy's graph has no weights of cost terms that this version knows; train it again"
        )
    return found


def _inputs() -> list[NodeProto]:
    """`replica_rows`, (n, k), and `context_logs`, one row: of compressed features, then of signals."""
    return [
        _node("Flatten", ["replicas"], "replica_rows", axis=2),
        _node("Concat", ["request", "pool", "request", "pool"], "context", axis=1),
        *_logs("context", "context"),
    ]


def _logs(source: str, name: str, *, is_scaled: bool = True) -> list[NodeProto]:
    """``log(clip(x * scale) + offset)``, from `source` to `NAME_logs`."""
    scaled = f"{name}_scaled" if is_scaled else source
    return [
        *([_node("Mul", [source, f"{name}_scale"], scaled)] if is_scaled else []),
        _node("Max", [scaled, f"{name}_least"], f"{name}_raised"),
        _node("Min", [f"{name}_raised", f"{name}_most"], f"{name}_clipped"),
        _node("Add", [f"{name}_clipped", f"{name}_offset"], f"{name}_above"),
        _node("Log", [f"{name}_above"], f"{name}_logs"),
    ]


def _cost() -> list[NodeProto]:
    """`cost`, (n,): `weighed_cost` over the temperature."""
    return [
        _node("Gather", ["replica_rows", "own_columns"], "own", axis=1),
        *_logs("own", "own", is_scaled=False),
        _node("Gemm", ["context_logs", "shared_slopes", "biases"], "shared_change"),
        _node("Gemm", ["own_logs", "own_slopes", "shared_change"], "free_change"),
        _node("Max", ["free_change", "change_least"], "change_raised"),
        _node("Min", ["change_raised", "change_most"], "change"),
        _node("Exp", ["change"], "weights"),
        _node("Slice", ["replica_rows", "first_term", "last_term", "columns"], "terms"),
        _node("Mul", ["terms", "weights"], "cost_parts"),
        _node("ReduceSum", ["cost_parts", "columns"], "cost", keepdims=0),
    ]


def _gap() -> list[NodeProto]:
    """How much dearer than the cheapest candidate, compressed, `gap`, (1, n).

    Where nobody may be chosen the cheapest is infinitely dear and all gaps are 0.
    """
    return [
        _node("Where", ["mask", "cost", "infinity"], "allowed_cost"),
        _node("ReduceMin", ["allowed_cost", "columns"], "cheapest", keepdims=1),
        _node("Sub", ["cost", "cheapest"], "difference"),
        _node("Relu", ["difference"], "dearer"),
        _node("Add", ["dearer", "one"], "dearer_above"),
        _node("Log", ["dearer_above"], "gap"),
    ]


def _trunk() -> list[NodeProto]:
    """`hidden`, (n, width)."""
    return [
        *_logs("replica_rows", "replica"),
        _node("Gemm", ["context_logs", "context_weight", "trunk_bias"], "context_row"),
        _node("Gemm", ["gap", "gap_weight", "context_row"], "gap_rows", transA=1),
        _node("Gemm", ["replica_logs", "replica_weight", "gap_rows"], "first"),
        _node("Relu", ["first"], "first_on"),
        _node("Gemm", ["first_on", "hidden_weight", "hidden_bias"], "second"),
        _node("Relu", ["second"], "hidden"),
    ]


def _pooled() -> list[NodeProto]:
    """`pooled`, (1, width): the mean of `hidden` over whom the mask allows; 0 over nobody."""
    return [
        _node("Cast", ["mask"], "allowed", to=TensorProto.FLOAT),
        _node("LpNormalization", ["allowed"], "shares", axis=1, p=1),
        _node("MatMul", ["shares", "hidden"], "pooled"),
    ]


def _heads(network: RoutingNetwork) -> list[NodeProto]:
    """`heads`, (1, heads, n)."""
    return [
        _node("Gemm", ["pooled", "pool_weight", "head_bias"], "pool_row"),
        _node("Gemm", ["hidden", "head_weight", "pool_row"], "mixed"),
        _node("Relu", ["mixed"], "mixed_on"),
        _node("Gemm", ["out_weight", "mixed_on"], "residual", transB=1),
        _node("Tanh", ["residual"], "bounded"),
        _node("Gemm", ["limit", "bounded", "gap"], "logits", beta=-network.sharpness),
        _node("Where", ["mask", "logits", "masked"], OUTPUT),
    ]


def _constants(network: RoutingNetwork) -> dict[str, NDArray[Any]]:
    heads = network.head_out.shape[0]
    replica_weight, replica_shift = _normalised(
        _array(network.from_replica.weight)[:, :-1], network.compress_replicas
    )
    context_weight, context_shift = _normalised(
        _array(network.from_context.weight), network.compress_context
    )
    real = {
        **_weighing(network),
        **_clip("replica", network.compress_replicas),
        "infinity": np.array(np.inf),
        "one": np.array(1.0),
        "replica_weight": replica_weight,
        "gap_weight": _array(network.from_replica.weight).T[-1:],
        "context_weight": np.concatenate([context_weight, np.zeros_like(context_weight)]),
        "trunk_bias": _array(network.from_replica.bias) + replica_shift + context_shift,
        "hidden_weight": _array(network.hidden.weight).T,
        "hidden_bias": _array(network.hidden.bias),
        "head_weight": _array(network.head_from_replica.weight).T,
        "head_bias": _array(network.head_from_replica.bias),
        "pool_weight": _array(network.head_from_pool.weight).T,
        "out_weight": _apart(_array(network.head_out)) / network.residual_limit,
        "limit": network.residual_limit * np.eye(heads),
        "masked": np.full((1, 1, 1), MASKED),
    }
    first = REPLICA_INDEX[COST_TERMS[0]]
    whole = {
        "own_columns": np.array(OF_CANDIDATE.columns),
        "first_term": np.array([first]),
        "last_term": np.array([first + len(COST_TERMS)]),
        "columns": np.array([1]),
    }
    return {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in real.items()} | {
        name: value.astype(np.int64) for name, value in whole.items()
    }


def _weighing(network: RoutingNetwork) -> dict[str, NDArray[Any]]:
    """A term counts exp(change + log(weight / temperature)); the first one's change is always 0."""
    coefficients = np.concatenate([np.zeros((1, SHAPE[1])), _array(network.coefficients)])
    shared, own = coefficients[:, 1:FIRST_CANDIDATE].T, coefficients[:, FIRST_CANDIDATE:].T
    log_weights = np.log(_WEIGHTS / network.temperature)
    shared_slopes = np.zeros((2 * len(CONTEXT), len(COST_TERMS)))
    shared_slopes[_SHARED_ROWS] = _array(OF_CONTEXT.scales)[:, None] * shared
    shifts = _array(OF_CONTEXT.shifts) @ shared + _array(OF_CANDIDATE.shifts) @ own
    least, most = _reach(OF_CONTEXT)
    features = _clip("context", network.compress_context)
    # Columns that are no signal are 1, whose logarithm is 0; no slope is theirs.
    signals = {name: np.zeros(len(CONTEXT)) for name in features} | {
        "context_offset": np.ones(len(CONTEXT))
    }
    for name, values in (
        ("scale", 1.0),
        ("least", least),
        ("most", most),
        ("offset", _array(OF_CONTEXT.floors)),
    ):
        signals[f"context_{name}"][OF_CONTEXT.columns] = values
    own_least, own_most = _reach(OF_CANDIDATE)
    return {name: np.concatenate([features[name], signals[name]]) for name in features} | {
        "biases": coefficients[:, 0] + shifts + log_weights,
        "shared_slopes": shared_slopes,
        "own_slopes": _array(OF_CANDIDATE.scales)[:, None] * own,
        "own_least": own_least,
        "own_most": own_most,
        "own_offset": _array(OF_CANDIDATE.floors),
        "change_least": log_weights - MOST_CHANGE,
        "change_most": log_weights + MOST_CHANGE,
    }


def _reach(signals: Signals) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Between which values of its features a signal is not clipped."""
    shifts, scales, floors = _array(signals.shifts), _array(signals.scales), _array(signals.floors)
    least, most = (np.exp((bound - shifts) / scales) - floors for bound in (-MOST_SIGNAL, MOST_SIGNAL))
    return np.maximum(least, _array(signals.least)), most


def _clip(name: str, compress: Compress) -> dict[str, NDArray[np.float64]]:
    """Scale and offset of `Compress`, and between which scaled values it does not clip."""
    mean, reach = _array(compress.mean), CLIP * _array(compress.std)
    with np.errstate(over="ignore"):
        bounds = [np.expm1(np.maximum(bound, 0.0)) for bound in (mean - reach, mean + reach)]
    least, most = (np.minimum(bound, _UNBOUNDED) for bound in bounds)
    return {
        f"{name}_scale": _array(compress.scale),
        f"{name}_least": least,
        f"{name}_most": most,
        f"{name}_offset": np.ones(len(mean)),
    }


def _normalised(
    weight: NDArray[np.float64], compress: Compress
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """A layer's weight (out, in), normalisation before it, as (in, out), and what that adds, (out,)."""
    folded = weight / _array(compress.std)
    return folded.T, -(folded @ _array(compress.mean))


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
