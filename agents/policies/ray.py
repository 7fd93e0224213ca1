"""`ray-prefix`: Ray Serve LLM's prefix-cache-affinity router."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from pydantic import Field

from steersman.agents.policies.p2c import better_of_two
from steersman.agents.policies.trees import TreeSizes
from steersman.agents.policy import NO_CANDIDATE, argmax_decision
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

_QUEUE = REPLICA_INDEX["queue"]
_MATCH = REPLICA_INDEX["match_fraction"]


class RayPrefixOptions(Settings):
    """Options of `ray-prefix`; the first two defaults are the published ones."""

    imbalanced_threshold: float = Field(
        default=10.0, ge=0.0, description="Greatest difference of queue lengths that counts as balanced."
    )
    match_threshold: float = Field(
        default=0.1, ge=0.0, le=1.0, description="Matched share of the prompt from which it is followed."
    )
    tree_tokens: float = Field(
        default=100_000.0, gt=0.0, description="Limit of a replica's tree (400 000 characters)."
    )


class RayPrefix:
    """By cache when balanced, the better of two otherwise::

        longest - shortest queue <= 10: best match >= 0.1: one of the best matches
                                        otherwise:         the smallest prefix tree
        otherwise:                      the shorter of two queues drawn at random

    and every prompt is inserted into the chosen replica's tree (`TreeSizes`).
    """

    name: ClassVar[str] = "ray-prefix"
    version: ClassVar[str] = ""

    def __init__(self, options: RayPrefixOptions, rng: np.random.Generator) -> None:
        self._options = options
        self._rng = rng
        self._trees = TreeSizes(options.tree_tokens)

    def decide(self, observation: Observation) -> Decision:
        """Match, spread or balance."""
        o, mask, replicas = self._options, observation.mask, observation.replicas
        queue, match = replicas[:, _QUEUE], replicas[:, _MATCH]
        spread = queue.max(where=mask, initial=-np.inf) - queue.min(where=mask, initial=np.inf)
        if spread > o.imbalanced_threshold:
            decision = better_of_two(queue, mask, self._rng, policy=self.name)
        elif match.max(where=mask, initial=0.0) >= o.match_threshold:
            decision = argmax_decision(match, mask, self._rng, policy=self.name)
        else:
            sizes = self._trees.of(len(mask)).astype(np.float32)
            decision = argmax_decision(-sizes, mask, self._rng, policy=self.name)
        if decision.choice != NO_CANDIDATE:
            self._trees.insert(replicas, decision.choice)
        return decision
