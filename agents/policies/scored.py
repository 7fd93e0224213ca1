"""What the policies that score every candidate share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from steersman.agents.batch import Choose, argmax_choices
from steersman.agents.policy import argmax_decision
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

Constants = Sequence[Any]
"""Of a formula: numbers for one decision, (B, 1) arrays for a batch of policies."""


class NoOptions(Settings):
    """A policy without anything to set."""


class PricedPolicy(ABC):
    """Knows what each candidate costs; what it makes of that is a subclass's.

    The formula is a plain function over the columns of `Observation.replicas` and the policy's
    constants, so that it holds for one decision and for a batch of policies alike.

    Args:
        rng: of all that the policy draws.
        constants: of its formula, in `precision`.
    """

    name: ClassVar[str]
    version: ClassVar[str] = ""
    precision: ClassVar[type[np.floating]] = np.float32

    def __init__(self, rng: np.random.Generator, *constants: float) -> None:
        self._rng = rng
        self._constants = tuple(self.precision(constant) for constant in constants)

    @classmethod
    @abstractmethod
    def price(cls, observation: Observation, constants: Constants) -> NDArray[np.floating]:
        """Cost of every candidate, (..., n), lower is better; the mask is not applied."""

    def cost(self, observation: Observation) -> NDArray[np.floating]:
        """`price` with the policy's own constants."""
        return self.price(observation, self._constants)

    @classmethod
    def stack(cls, policies: Sequence[Any]) -> Constants:
        """The constants of several policies, each (B, 1)."""
        columns = zip(*(policy._constants for policy in policies), strict=True)
        return [np.array(column, dtype=cls.precision)[:, None] for column in columns]


class ScoredPolicy(PricedPolicy):
    """Sends every request to the eligible candidate with the least cost; ties are drawn evenly."""

    @classmethod
    def ranking(
        cls, observation: Observation, constants: Constants
    ) -> tuple[NDArray[np.floating], NDArray[np.bool_]]:
        """What candidates cost, and among whom the cheapest is taken, both (..., n): by default the
        price, and the mask; never nobody while the mask allows somebody."""
        return cls.price(observation, constants), observation.mask

    def decide(self, observation: Observation) -> Decision:
        """The cheapest eligible candidate."""
        cost, eligible = self.ranking(observation, self._constants)
        scores = -cost.astype(np.float32, copy=False)
        return argmax_decision(scores, eligible, self._rng, policy=self.name, version=self.version)

    @classmethod
    def together(cls, policies: Sequence[Any]) -> Choose:
        """See `BatchPolicy.together`."""
        constants = cls.stack(policies)
        rngs = [policy._rng for policy in policies]

        def choose(observation: Observation) -> NDArray[np.int64]:
            cost, eligible = cls.ranking(observation, constants)
            return argmax_choices(-cost.astype(np.float32, copy=False), eligible, rngs)

        return choose
