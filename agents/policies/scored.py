"""What the policies that score every candidate share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from steersman.agents.policy import argmax_decision
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings


class NoOptions(Settings):
    """A policy without anything to set."""


class ScoredPolicy(ABC):
    """Sends every request to the candidate with the least cost; ties are drawn evenly.

    A subclass says what a candidate costs. Its formula is a plain function over the columns of
    `Observation.replicas`, so that it holds for one decision and for a batch alike, and numba
    compiles it as it is.
    """

    name: ClassVar[str]
    version: ClassVar[str] = ""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    @abstractmethod
    def cost(self, observation: Observation) -> NDArray[np.float32]:
        """Cost of every candidate, (..., n), lower is better; the mask is not applied."""

    def decide(self, observation: Observation) -> Decision:
        """The cheapest allowed candidate."""
        return argmax_decision(
            -self.cost(observation), observation.mask, self._rng, policy=self.name, version=self.version
        )
