"""`vllm-dp` and `production-stack-prefix`: what vLLM brings along."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policies.scored import Constants, NoOptions, ScoredPolicy
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

Float32 = NDArray[np.float32]

_RUNNING = REPLICA_INDEX["running"]
_WAITING = REPLICA_INDEX["waiting"]
_MATCH = REPLICA_INDEX["match_fraction"]


def vllm_dp_cost(replicas: Float32) -> Float32:
    """vLLM's internal data-parallel balancer: 4 * waiting + running, (..., n), lower is better."""
    cost: Float32 = np.float32(4.0) * replicas[..., _WAITING] + replicas[..., _RUNNING]
    return cost


class VllmDp(ScoredPolicy):
    """vLLM's own balancer between data-parallel ranks."""

    name: ClassVar[str] = "vllm-dp"

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options
        super().__init__(rng)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """4 * waiting + running, (..., n)."""
        del constants
        return vllm_dp_cost(observation.replicas)


class ProductionStackPrefix(ScoredPolicy):
    """The vLLM production stack's prefix router: one of the deepest matches, whatever the load.

    Theirs is a trie of 128-character chunks that never forgets; ours knows what the replica's cache
    must have evicted, which can only help it.
    """

    name: ClassVar[str] = "production-stack-prefix"

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options
        super().__init__(rng)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """Minus the matched share of the prompt, (..., n); where nothing matches, all are alike."""
        del constants
        return -observation.replicas[..., _MATCH]
