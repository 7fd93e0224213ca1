"""`least-connections` and `weighted-least-connections`: fewest requests, plain or by capability."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policies.scored import Constants, NoOptions, ScoredPolicy
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

Float32 = NDArray[np.float32]

_INFLIGHT = REPLICA_INDEX["inflight"]
_QUEUE = REPLICA_INDEX["queue"]
_MAX_NUM_SEQS = REPLICA_INDEX["max_num_seqs"]
_GPU_MEMORY = REPLICA_INDEX["gpu_memory_gib"]
_WEIGHTS = REPLICA_INDEX["weights_gib"]
_BASE_WEIGHT = REPLICA_INDEX["base_weight"]


def effective_weight(replicas: Float32) -> Float32:
    """SPEC B1's weight of every candidate, (..., n)::

        base_weight * (gpu_memory / model_memory) * (max_batch / current_batch)

    The current batch is what runs or waits there; an idle replica counts as batch 1. Since the
    batch is the number of connections, the greatest weight is the least weighted connections.

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
    """
    batch = np.maximum(replicas[..., _QUEUE], np.float32(1.0))
    static = replicas[..., _BASE_WEIGHT] * replicas[..., _GPU_MEMORY] / replicas[..., _WEIGHTS]
    weight = static * replicas[..., _MAX_NUM_SEQS] / batch
    return weight.astype(np.float32, copy=False)


class LeastConnections(ScoredPolicy):
    """Fewest of the router's own requests in flight."""

    name: ClassVar[str] = "least-connections"

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options
        super().__init__(rng)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """Requests in flight, (..., n)."""
        del constants
        inflight: Float32 = observation.replicas[..., _INFLIGHT]
        return inflight


class WeightedLeastConnections(ScoredPolicy):
    """Greatest effective weight."""

    name: ClassVar[str] = "weighted-least-connections"

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options
        super().__init__(rng)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """Minus the effective weight, (..., n)."""
        del constants
        return -effective_weight(observation.replicas)
