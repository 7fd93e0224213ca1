"""`sglang-cache-aware`: the SGLang router's cache-aware policy."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from steersman.agents.policies.trees import TreeSizes
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
        self._options = options
        self._rng = rng
        self._trees = TreeSizes(options.tree_tokens)

    def decide(self, observation: Observation) -> Decision:
        """Balance, match or spread."""
        o, mask, replicas = self._options, observation.mask, observation.replicas
        inflight = replicas[:, _INFLIGHT]
        most = inflight.max(where=mask, initial=-np.inf)
        fewest = inflight.min(where=mask, initial=np.inf)
        match = replicas[:, _MATCH]
        if most - fewest > o.balance_abs and most > o.balance_rel * fewest:
            scores = -inflight
        elif match.max(where=mask, initial=0.0) > o.cache_threshold:
            scores = match
        else:
            scores = -self._trees.of(len(mask)).astype(np.float32)
        decision = argmax_decision(scores, mask, self._rng, policy=self.name)
        if decision.choice != NO_CANDIDATE:
            self._trees.insert(replicas, decision.choice)
        return decision
