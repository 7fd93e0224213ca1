"""`sglang-cache-aware`: the SGLang router's cache-aware policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.batch import Choose, argmax_choices
from steersman.agents.policies.scored import Constants
from steersman.agents.policies.trees import Forest, TreeSizes
from steersman.agents.policy import NO_CANDIDATE, argmax_decision
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

_INFLIGHT = REPLICA_INDEX["inflight"]
_MATCH = REPLICA_INDEX["match_fraction"]


class SglangOptions(Settings):
    """Options of `sglang-cache-aware`; the defaults are the router's (its library has 32, 1.1, 0.5)."""

    balance_abs: float = Field(
        default=64.0, ge=0.0, description="Imbalanced above this difference of requests in flight"
    )
    balance_rel: float = Field(
        default=1.5, ge=1.0, description="and above this ratio of the most to the fewest."
    )
    cache_threshold: float = Field(
        default=0.3,
        ge=0.0,
        le=1.0,
        description="Matched share of a prompt above which it is followed.",
    )
    tree_tokens: float = Field(
        default=16_777_216.0, gt=0.0, description="Limit of a replica's tree (2^26 characters)."
    )


class SglangCacheAware:
    """By load when imbalanced, by cache otherwise::

        most - fewest > 64 and most > 1.5 * fewest in flight: the fewest in flight
        best match > 0.3 of the prompt:                       the best match
        otherwise:                                            the smallest prefix tree

    and every prompt is inserted into the chosen replica's tree (`TreeSizes`). Ties are drawn evenly.
    """

    name: ClassVar[str] = "sglang-cache-aware"
    version: ClassVar[str] = ""

    def __init__(self, options: SglangOptions, rng: np.random.Generator) -> None:
        self._rng = rng
        self._trees = TreeSizes(options.tree_tokens)
        self._constants = tuple(
            np.float32(constant)
            for constant in (options.balance_abs, options.balance_rel, options.cache_threshold)
        )

    def decide(self, observation: Observation) -> Decision:
        """Balance, match or spread."""
        mask, replicas = observation.mask, observation.replicas
        scores = _scores(observation, self._trees.of(len(mask)), self._constants)
        decision = argmax_decision(scores, mask, self._rng, policy=self.name)
        if decision.choice != NO_CANDIDATE:
            self._trees.insert(replicas, decision.choice)
        return decision

    @staticmethod
    def together(policies: Sequence[SglangCacheAware]) -> Choose:
        """See `BatchPolicy.together`."""
        columns = zip(*(policy._constants for policy in policies), strict=True)
        constants = [np.array(column)[:, None] for column in columns]
        rngs = [policy._rng for policy in policies]
        trees = Forest([policy._trees for policy in policies])

        def choose(observation: Observation) -> NDArray[np.int64]:
            sizes = trees.of(observation.mask.shape[1])
            choices = argmax_choices(_scores(observation, sizes, constants), observation.mask, rngs)
            trees.insert(observation.replicas, choices)
            return choices

        return choose


def _scores(
    observation: Observation, tree_tokens: NDArray[np.float64], constants: Constants
) -> NDArray[np.float32]:
    """(..., n), higher is better."""
    balance_abs, balance_rel, cache_threshold = constants
    mask, inflight = observation.mask, observation.replicas[..., _INFLIGHT]
    match = observation.replicas[..., _MATCH]
    most = np.where(mask, inflight, -np.inf).max(axis=-1, keepdims=True)
    fewest = np.where(mask, inflight, np.inf).min(axis=-1, keepdims=True)
    uneven = (most - fewest > balance_abs) & (most > balance_rel * fewest)
    matched = np.where(mask, match, 0.0).max(axis=-1, keepdims=True) > cache_threshold
    by_cache = np.where(matched, match, -tree_tokens.astype(np.float32))
    return np.where(uneven, -inflight, by_cache)
