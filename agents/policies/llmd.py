"""`llm-d-default` and `llm-d-sticky`: llm-d's schedulers (Gateway API Inference Extension)."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.scored import Constants, ScoredPolicy
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation
from steersman.traces.settings import Settings

Float32 = NDArray[np.float32]

_WAITING = REPLICA_INDEX["waiting"]
_KV_USAGE = REPLICA_INDEX["kv_usage"]
_MATCH = REPLICA_INDEX["match_fraction"]
_PREFILL = REPLICA_INDEX["prefill_tokens"]
_UNCACHED = REPLICA_INDEX["uncached_tokens"]
_PREFILL_TOKEN_S = REPLICA_INDEX["prefill_token_s"]


def llm_d_score(
    replicas: Float32,
    mask: NDArray[np.bool_],
    queue_weight: float | Float32 = 2.0,
    kv_weight: float | Float32 = 2.0,
    prefix_weight: float | Float32 = 3.0,
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
        queue_weight * level.astype(np.float32)
        + kv_weight * (np.float32(1.0) - replicas[..., _KV_USAGE])
        + prefix_weight * replicas[..., _MATCH]
    )
    return score


class LlmDOptions(Settings):
    """Options of `llm-d-default`; the defaults are the published weights."""

    queue_weight: float = Field(default=2.0, ge=0.0, description="Weight of the queue scorer.")
    kv_weight: float = Field(default=2.0, ge=0.0, description="Weight of the KV-use scorer.")
    prefix_weight: float = Field(default=3.0, ge=0.0, description="Weight of the prefix-match scorer.")


class LlmDDefault(ScoredPolicy):
    """llm-d's default scheduler, over Steersman's own prefix index and load estimate."""

    name: ClassVar[str] = "llm-d-default"

    def __init__(self, options: LlmDOptions, rng: np.random.Generator) -> None:
        super().__init__(rng, options.queue_weight, options.kv_weight, options.prefix_weight)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """Minus the weighted score, (..., n)."""
        return -llm_d_score(observation.replicas, observation.mask, *constants)


class LlmDStickyOptions(Settings):
    """Options of `llm-d-sticky`."""

    sticky_match: float = Field(
        default=0.8,
        ge=0.0,
        le=1.0,
        description="Matched share of a prompt that makes it stick.",
    )
    ttft_limit_s: float = Field(
        default=1.0,
        ge=0.0,
        description="How much slower to the first token a sticky replica may be, in seconds; theirs is "
        "tuned for the hardware, this default is ours.",
    )


class LlmDSticky(ScoredPolicy):
    """llm-d's "sticky until saturated".

    Replicas that hold `sticky_match` of the prompt are preferred, unless the best of them is estimated
    to be more than `ttft_limit_s` slower to the first token than the best of the others; the estimate is
    the prompt tokens in flight there over the peak prefill rate. Among those left::

        argmin of uncached tokens in flight + prompt tokens * (1 - P)
    """

    name: ClassVar[str] = "llm-d-sticky"

    def __init__(self, options: LlmDStickyOptions, rng: np.random.Generator) -> None:
        super().__init__(rng, options.sticky_match, options.ttft_limit_s)

    @classmethod
    def price(cls, observation: Observation, constants: Constants) -> Float32:
        """Tokens to be prefilled before the first token, this prompt's included, (..., n)."""
        del constants
        cost: Float32 = observation.replicas[..., _PREFILL] + observation.replicas[..., _UNCACHED]
        return cost

    @classmethod
    def ranking(
        cls, observation: Observation, constants: Constants
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        """The least tokens, among the sticky unless they are saturated."""
        replicas, mask = observation.replicas, observation.mask
        sticky_match, ttft_limit_s = constants
        sticky = mask & (replicas[..., _MATCH] >= sticky_match)
        ttft_s = replicas[..., _PREFILL] * replicas[..., _PREFILL_TOKEN_S]
        best_s = np.where(sticky, ttft_s, np.inf).min(axis=-1, keepdims=True)
        other_s = np.where(mask & ~sticky, ttft_s, np.inf).min(axis=-1, keepdims=True)
        preferred = sticky.any(axis=-1, keepdims=True) & ~(best_s > other_s + ttft_limit_s)
        return cls.price(observation, constants), np.where(preferred, sticky, mask)
