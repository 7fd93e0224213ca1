"""`round-robin` and `weighted-round-robin`: turns, whatever the load.

Both keep a position between decisions, by index: they are not permutation-equivariant, and start
anew when the number of replicas changes.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from steersman.agents.policies.scored import NoOptions
from steersman.agents.policy import NO_CANDIDATE
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Decision, Observation
from steersman.traces.settings import Settings

_BASE_WEIGHT = REPLICA_INDEX["base_weight"]


class RoundRobin:
    """The next allowed replica after the last one chosen."""

    name: ClassVar[str] = "round-robin"
    version: ClassVar[str] = ""

    def __init__(self, options: NoOptions, rng: np.random.Generator) -> None:
        del options, rng
        self._last = -1

    def decide(self, observation: Observation) -> Decision:
        """Take the next turn."""
        n = len(observation.mask)
        allowed = np.flatnonzero(observation.mask)
        if not len(allowed):
            return Decision(NO_CANDIDATE, self.name)
        last = self._last if self._last < n else -1
        later = allowed[allowed > last]
        self._last = int(later[0] if len(later) else allowed[0])
        return Decision(self._last, self.name)


class WeightedRoundRobinOptions(Settings):
    """Options of `weighted-round-robin`."""

    exponent: float = Field(
        default=1.0,
        ge=0.0,
        le=4.0,
        description="Power of the base weight: 0 is plain round robin, above 1 favours the fast.",
    )


class WeightedRoundRobin:
    """Turns in proportion to the base weight, spread smoothly.

    Nginx's smooth weighted round robin. With weight wᵢ = base_weightᵢ ^ exponent (SPEC B1: hardware
    factor over the model's size class), at every decision each allowed replica's credit grows by wᵢ;
    the greatest credit is chosen and pays back Σ wᵢ.
    """

    name: ClassVar[str] = "weighted-round-robin"
    version: ClassVar[str] = ""

    def __init__(self, options: WeightedRoundRobinOptions, rng: np.random.Generator) -> None:
        del rng
        self._exponent = options.exponent
        self._credit: NDArray[np.float64] = np.zeros(0)

    def decide(self, observation: Observation) -> Decision:
        """The allowed replica with the most credit."""
        mask = observation.mask
        if not mask.any():
            return Decision(NO_CANDIDATE, self.name)
        if len(self._credit) != len(mask):
            self._credit = np.zeros(len(mask))
        weight = observation.replicas[:, _BASE_WEIGHT].astype(np.float64) ** self._exponent
        weight = np.where(mask & np.isfinite(weight), weight, 0.0)
        self._credit += weight
        choice = int(np.argmax(np.where(mask, self._credit, -np.inf)))
        self._credit[choice] -= weight.sum()
        return Decision(choice, self.name)
