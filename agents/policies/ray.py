"""`ray-prefix`: Ray Serve LLM's prefix-cache-affinity router."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.batch import Choose, argmax_choices
from steersman.agents.policies.p2c import better_of_two, better_of_two_choices
from steersman.agents.policies.scored import Constants
from steersman.agents.policies.trees import Forest, TreeSizes
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
        self._rng = rng
        self._trees = TreeSizes(options.tree_tokens)
        self._constants = (np.float32(options.imbalanced_threshold), np.float32(options.match_threshold))

    def decide(self, observation: Observation) -> Decision:
        """Match, spread or balance."""
        mask, replicas = observation.mask, observation.replicas
        scores, uneven = _rank(observation, self._trees.of(len(mask)), self._constants)
        if uneven[0]:
            decision = better_of_two(replicas[:, _QUEUE], mask, self._rng, policy=self.name)
        else:
            decision = argmax_decision(scores, mask, self._rng, policy=self.name)
        if decision.choice != NO_CANDIDATE:
            self._trees.insert(replicas, decision.choice)
        return decision

    @staticmethod
    def together(policies: Sequence[RayPrefix]) -> Choose:
        """See `BatchPolicy.together`."""
        columns = zip(*(policy._constants for policy in policies), strict=True)
        constants = [np.array(column)[:, None] for column in columns]
        rngs = [policy._rng for policy in policies]
        trees = Forest([policy._trees for policy in policies])

        def choose(observation: Observation) -> NDArray[np.int64]:
            mask, replicas = observation.mask, observation.replicas
            scores, uneven = _rank(observation, trees.of(mask.shape[1]), constants)
            choices = argmax_choices(scores, mask & ~uneven, rngs)
            drawn = better_of_two_choices(replicas[..., _QUEUE], mask & uneven, rngs)
            choices = np.where(uneven[:, 0], drawn, choices)
            trees.insert(replicas, choices)
            return choices

        return choose


def _rank(
    observation: Observation, tree_tokens: NDArray[np.float64], constants: Constants
) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Scores while balanced, (..., n), higher is better; and whether it is not, (..., 1)."""
    imbalanced, match_threshold = constants
    mask, queue = observation.mask, observation.replicas[..., _QUEUE]
    match = observation.replicas[..., _MATCH]
    longest = np.where(mask, queue, -np.inf).max(axis=-1, keepdims=True)
    shortest = np.where(mask, queue, np.inf).min(axis=-1, keepdims=True)
    matched = np.where(mask, match, 0.0).max(axis=-1, keepdims=True) >= match_threshold
    scores = np.where(matched, match, -tree_tokens.astype(np.float32))
    return scores, longest - shortest > imbalanced
