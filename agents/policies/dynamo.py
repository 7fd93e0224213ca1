"""`dynamo-kv`: NVIDIA Dynamo's KV router."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.scored import ScoredPolicy
from steersman.agents.policies.spread import min_max
from steersman.agents.policy import argmax_decision
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

Float32 = NDArray[np.float32]

_PREFILL = REPLICA_INDEX["prefill_tokens"]
_UNCACHED = REPLICA_INDEX["uncached_tokens"]
_CONTEXT = REPLICA_INDEX["context_tokens"]


class DynamoKvOptions(Settings):
    """Options of `dynamo-kv`; the defaults are the published ones."""

    overlap_weight: float = Field(
        default=1.0, ge=0.0, description="Weight of the prefill blocks (`overlap_score_weight`)."
    )
    temperature: float = Field(
        default=0.0, ge=0.0, description="Of a softmax over the normalised costs; 0 takes the least."
    )
    block_tokens: int = Field(default=16, ge=1, description="Tokens per KV block.")


def dynamo_cost(replicas: Float32, overlap_weight: float, block_tokens: int) -> Float32:
    """Blocks to prefill and blocks to decode, (..., n), lower is better::

        s * max(0, activePrefillBlocks + promptBlocks - overlapBlocks) + activeDecodeBlocks

    Active prefill: prompt tokens in flight without a first token; active decode: the context of what
    decodes. Its own blocks would be added to the latter on every candidate alike.

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
    """
    prefill = np.maximum(replicas[..., _PREFILL] + replicas[..., _UNCACHED], np.float32(0.0))
    blocks = np.float32(overlap_weight) * prefill + replicas[..., _CONTEXT]
    cost: Float32 = blocks / np.float32(block_tokens)
    return cost


class DynamoKv(ScoredPolicy):
    """The least `dynamo_cost`; with a temperature T, a draw from softmax(-norm(cost) / T)."""

    name: ClassVar[str] = "dynamo-kv"

    def __init__(self, options: DynamoKvOptions, rng: np.random.Generator) -> None:
        super().__init__(rng)
        self._options = options

    def cost(self, observation: Observation) -> Float32:
        """See `dynamo_cost`, (..., n)."""
        return dynamo_cost(
            observation.replicas, self._options.overlap_weight, self._options.block_tokens
        )

    def decide(self, observation: Observation) -> Decision:
        """The least cost, or a draw."""
        cost, mask, temperature = self.cost(observation), observation.mask, self._options.temperature
        if temperature == 0.0 or not mask.any():
            return argmax_decision(-cost, mask, self._rng, policy=self.name)
        weights = np.where(mask, np.exp(-min_max(cost, mask) / temperature), 0.0)
        # So cold that only the least counts: its weight is 1, unless no cost is a number.
        chances = weights / weights.sum() if weights.sum() > 0 else mask / mask.sum()
        choice = int(self._rng.choice(len(mask), p=chances))
        return Decision(choice, self.name, propensity=float(chances[choice]), scores=-cost)
