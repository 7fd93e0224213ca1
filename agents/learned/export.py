"""From the trained network to the served graph: ONNX, with metadata and rows that prove parity."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from steersman.agents.fit.onnx_meta import write_metadata
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.served import KIND, POLICY_FEATURES
from steersman.agents.ranges import Ranges
from steersman.predictors.features import POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.traces.schema import Observation

OPSET = 20
INPUTS = ("replicas", "request", "pool", "mask")
OUTPUT = "heads"


def head_logits(network: RoutingNetwork, observation: Observation) -> NDArray[np.float32]:
    """What the torch network answers to an observation with one batch dimension, (b, heads, n)."""
    with torch.no_grad():
        logits: NDArray[np.float32] = network(*_tensors(observation)).numpy()
    return logits


def export_policy(
    network: RoutingNetwork,
    ranges: Ranges,
    pool_range: tuple[NDArray[np.float32], NDArray[np.float32]],
    parity: Observation,
    *,
    version: str,
    extra: dict[str, str] | None = None,
) -> bytes:
    """The served form of the network.

    Args:
        ranges: of the features seen in training; the guard compares observations with them.
        pool_range: lowest and highest value of each pool feature, (len(POOL_FEATURES),) each.
        parity: a few observations with one batch dimension, extremes and masks among them; the graph
            must answer to them as the network does whenever it is loaded.
        version: which artifact, for logs.
        extra: further metadata entries.
    """
    model = _to_onnx(network)
    write_metadata(
        model,
        kind=KIND,
        version=version,
        features=POLICY_FEATURES,
        lower=np.concatenate([ranges.replica_lower, ranges.request_lower, pool_range[0]]),
        upper=np.concatenate([ranges.replica_upper, ranges.request_upper, pool_range[1]]),
        parity_inputs={name: getattr(parity, name) for name in INPUTS},
        parity_outputs=[head_logits(network, parity)],
        extra=extra,
    )
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString()
    return data


def _to_onnx(network: RoutingNetwork) -> onnx.ModelProto:
    # Exported on the CPU, without gradients, at a batch and a pool size that are no special case.
    network = copy.deepcopy(network).eval().requires_grad_(False)
    batch, n = torch.export.Dim("batch"), torch.export.Dim("n")
    example = (
        torch.rand(2, 3, len(REPLICA_FEATURES)),
        torch.rand(2, len(REQUEST_FEATURES)),
        torch.rand(2, len(POOL_FEATURES)),
        torch.ones(2, 3, dtype=torch.bool),
    )
    with _quiet_exporter():
        program = torch.onnx.export(
            network,
            example,
            dynamo=True,
            dynamic_shapes=({0: batch, 1: n}, {0: batch}, {0: batch}, {0: batch, 1: n}),
            input_names=list(INPUTS),
            output_names=[OUTPUT],
            opset_version=OPSET,
            verbose=False,
        )
        assert program is not None
        model: onnx.ModelProto = program.model_proto
    _strip_origins(model)
    return model


def _strip_origins(model: onnx.ModelProto) -> None:
    """Drop what the exporter notes about where each node came from: paths of the training machine."""
    model.doc_string = ""
    for node in model.graph.node:
        node.doc_string = ""
        del node.metadata_props[:]
    for value in [*model.graph.input, *model.graph.output, *model.graph.value_info]:
        del value.metadata_props[:]
    for tensor in model.graph.initializer:
        del tensor.metadata_props[:]
    del model.graph.metadata_props[:]


@contextmanager
def _quiet_exporter() -> Iterator[None]:
    """The exporter remarks on torchvision being absent and on its own deprecated internals."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=FutureWarning, message=".*LeafSpec.*")
            warnings.filterwarnings("ignore", category=UserWarning, message=".*The axis name.*")
            yield
    finally:
        logger.setLevel(level)


def _tensors(observation: Observation) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(getattr(observation, name))) for name in INPUTS)
