"""`dynamo-kv`: NVIDIA Dynamo's KV router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.batch import Choose, argmax_choices
from steersman.agents.policies.scored import Constants, ScoredPolicy
from steersman.agents.policies.spread import min_max
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


def dynamo_cost(
    replicas: Float32, overlap_weight: float | Float32, block_tokens: float | Float32
) -> Float32:
    """Blocks to prefill and blocks to decode, (..., n), lower is better::

        s * max(0, activePrefillBlocks + promptBlocks - overlapBlocks) + activeDecodeBlocks

    Active prefill: prompt tokens in flight without a first token; active decode: the context of what
    decodes. Its own blocks would be added to the latter on every candidate alike.

    Args:
        replicas: (..., n, len(REPLICA_FEATURES)).
    """
    prefill = np.maximum(replicas[..., _PREFILL] + replicas[..., _UNCACHED], np.float32(0.0))
    blocks = overlap_weight * prefill + replicas[..., _CONTEXT]
    cost: Float32 = blocks / block_tokens
    return cost


class DynamoKv(ScoredPolicy):
    """The least `dynamo_cost`; with a temperature T, a draw from softmax(-norm(cost) / T)."""

    name: ClassVar[str] = "dynamo-kv"

    def __init__(self, options: DynamoKvOptions, rng: np.random.Generator) -> None:
        super().__init__(rng, options.overlap_weight, float(options.block_tokens))
        self._temperature = options.temperature

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """See `dynamo_cost`, (..., n)."""
        return dynamo_cost(observation.replicas, *constants)

    def decide(self, observation: Observation) -> Decision:
        """The least cost, or a draw."""
        if self._temperature == 0.0 or not observation.mask.any():
            return super().decide(observation)
        cost = self.cost(observation).astype(np.float32, copy=False)
        reached = _cumulated(cost, observation.mask, self._temperature)
        choice = int(np.count_nonzero(reached <= self._rng.random()))
        before = reached[choice - 1] if choice else 0.0
        return Decision(choice, self.name, propensity=float(reached[choice] - before), scores=-cost)

    @classmethod
    def together(cls, policies: Sequence[Any]) -> Choose:
        """See `BatchPolicy.together`."""
        constants = cls.stack(policies)
        rngs = [policy._rng for policy in policies]
        temperature = np.array([policy._temperature for policy in policies])
        cold = (temperature == 0.0)[:, None]
        divisor = np.where(cold, 1.0, temperature[:, None])

        def choose(observation: Observation) -> NDArray[np.int64]:
            cost, mask = cls.price(observation, constants), observation.mask
            choices = argmax_choices(-cost, mask & cold, rngs)
            reached = _cumulated(cost, mask, divisor)
            for i in np.flatnonzero(mask.any(axis=-1) & ~cold[:, 0]).tolist():
                choices[i] = np.count_nonzero(reached[i] <= rngs[i].random())
            return choices

        return choose


def _cumulated(
    cost: Float32, mask: NDArray[np.bool_], temperature: float | NDArray[np.float64]
) -> NDArray[np.float64]:
    """Chance that the draw falls on a candidate or on one before it, (..., n); where the mask allows
    nobody, of no meaning."""
    weights = np.where(mask, np.exp(-min_max(cost, mask) / temperature), 0.0)
    # So cold that only the least counts: its weight is 1, unless no cost is a number.
    some = weights.any(axis=-1, keepdims=True)
    reached: NDArray[np.float64] = np.cumsum(np.where(some, weights, mask), axis=-1)
    return reached / np.maximum(reached[..., -1:], np.finfo(np.float64).tiny)
