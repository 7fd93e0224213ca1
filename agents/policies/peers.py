"""`vllm-dp` and `llm-d-default`: what other routers do, so that one can compare before switching."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.scored import NoOptions, ScoredPolicy
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation
from steersman.traces.settings import Settings

Float32 = NDArray[np.float32]

_RUNNING = REPLICA_INDEX["running"]
_WAITING = REPLICA_INDEX["waiting"]
_KV_USAGE = REPLICA_INDEX["kv_usage"]
_MATCH = REPLICA_INDEX["match_fraction"]


def vllm_dp_cost(replicas: Float32) -> Float32:
    """vLLM's internal data-parallel balancer: 4 * waiting + running, (..., n), lower is better."""
    cost: Float32 = np.float32(4.0) * replicas[..., _WAITING] + replicas[..., _RUNNING]
    return cost


def llm_d_score(
    replicas: Float32,
    mask: NDArray[np.bool_],
    queue_weight: float = 2.0,
    kv_weight: float = 2.0,
    prefix_weight: float = 3.0,
) -> Float32:
    """The Gateway API Inference Extension's weighted scorers, (..., n), higher is better::

        2 Q + 2 K + 3 P

    Q = (max waiting - waiting) / (max waiting - min waiting) over the allowed candidates, 1 where all
    are equal; K = 1 - KV use; P = matched share of the prompt.
    """
    waiting = replicas[..., _WAITING]
    most = np.where(mask, waiting, -np.inf).max(axis=-1)[..., None]
    least = np.where(mask, waiting, np.inf).min(axis=-1)[..., None]
    spread = most - least
    level = np.where(spread > 0, (most - waiting) / np.where(spread > 0, spread, 1.0), 1.0)
    score: Float32 = (
        np.float32(queue_weight) * level.astype(np.float32)
        + np.float32(kv_weight) * (np.float32(1.0) - replicas[..., _KV_USAGE])
        + np.float32(prefix_weight) * replicas[..., _MATCH]
    )
    return score


class VllmDp(ScoredPolicy):
    """vLLM's own balancer between data-parallel ranks."""

    name: ClassVar[str] = "vllm-dp"

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options
        super().__init__(rng)

    def cost(self, observation: Observation) -> Float32:
        """4 * waiting + running, (..., n)."""
        return vllm_dp_cost(observation.replicas)


class LlmDOptions(Settings):
    """Options of `llm-d-default`; the defaults are the published weights."""

    queue_weight: float = Field(default=2.0, ge=0.0, description="Weight of the queue scorer.")
    kv_weight: float = Field(default=2.0, ge=0.0, description="Weight of the KV-use scorer.")
    prefix_weight: float = Field(default=3.0, ge=0.0, description="Weight of the prefix-match scorer.")


class LlmDDefault(ScoredPolicy):
    """llm-d's default scheduler, over Steersman's own prefix index and load estimate."""

    name: ClassVar[str] = "llm-d-default"

    def __init__(self, options: LlmDOptions, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._options = options

    def cost(self, observation: Observation) -> Float32:
        """Minus the weighted score, (..., n)."""
        o = self._options
        if not observation.mask.any():
            return np.zeros(observation.mask.shape, dtype=np.float32)
        return -llm_d_score(
            observation.replicas, observation.mask, o.queue_weight, o.kv_weight, o.prefix_weight
        )
