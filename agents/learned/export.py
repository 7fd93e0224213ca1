"""From the trained network to the served graph: ONNX, with metadata and rows that prove parity."""

from __future__ import annotations

import numpy as np
import onnx
import torch
from numpy.typing import NDArray

from steersman.agents.fit.onnx_meta import write_metadata
from steersman.agents.learned.graph import INPUTS, policy_graph
from steersman.agents.learned.network import RoutingNetwork
from steersman.agents.learned.served import KIND, POLICY_FEATURES
from steersman.agents.ranges import Ranges
from steersman.predictors.onnx_model import OnnxModel
from steersman.traces.schema import Observation


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

    Raises:
        ArtifactError: the graph does not answer what the network does.
    """
    model = policy_graph(network)
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
    # What would not load is not handed out.
    OnnxModel.parse(data, kind=KIND, features=POLICY_FEATURES, source="exported policy")
    return data


def _tensors(observation: Observation) -> tuple[torch.Tensor, ...]:
    return tuple(torch.from_numpy(np.ascontiguousarray(getattr(observation, name))) for name in INPUTS)
