"""`random`: any allowed replica, evenly."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from steersman.agents.policies.scored import NoOptions
from steersman.agents.policy import NO_CANDIDATE
from steersman.traces.schema import Decision, Observation


class Random:
    """Draws evenly among the allowed replicas: propensity 1 / candidates."""

    name: ClassVar[str] = "random"
    version: ClassVar[str] = ""

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options
        self._rng = rng

    def decide(self, observation: Observation) -> Decision:
        """One even draw."""
        allowed = np.flatnonzero(observation.mask)
        if not len(allowed):
            return Decision(NO_CANDIDATE, self.name)
        choice = int(allowed[self._rng.integers(len(allowed))])
        return Decision(choice, self.name, propensity=1.0 / len(allowed))
