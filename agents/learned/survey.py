"""What a policy meets: the ranges of all features on the clusters that its search was on.

The guard lets a learned policy decide only where features are as in training (`agents/ranges.py`). The
states that are asked about on the way are of a few clusters; those of a search are of thousands, but too
many to be kept. So at the end the policy plays some hundred more of them, once, and what it sees counts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from steersman.agents.learned.config import EvolutionSettings
from steersman.agents.learned.evolution import TOGETHER, cheapest
from steersman.agents.learned.ground import Ground
from steersman.agents.learned.playing import play
from steersman.agents.learned.practice import Plan, Practice, companions
from steersman.agents.parallel import Task, spread
from steersman.agents.ranges import Ranges
from steersman.predictors.features import POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.predictors.length import LengthPredictor
from steersman.traces.schema import Observation

Float32 = NDArray[np.float32]
_SURVEY = 4
"""Sets the seeds of the clusters apart from those of the learners."""


class Seen:
    """Lowest and highest value of every feature so far: replicas', request's and pool's."""

    def __init__(self) -> None:
        widths = (len(REPLICA_FEATURES), len(REQUEST_FEATURES), len(POOL_FEATURES))
        self.lower: list[Float32] = [np.full(width, np.inf, dtype=np.float32) for width in widths]
        self.upper: list[Float32] = [np.full(width, -np.inf, dtype=np.float32) for width in widths]

    def note(self, replicas: Float32, request: Float32, pool: Float32) -> None:
        """Rows of each, (..., width)."""
        for i, rows in enumerate((replicas, request, pool)):
            flat = rows.reshape(-1, rows.shape[-1])
            self._extend(i, flat.min(axis=0, initial=np.inf), flat.max(axis=0, initial=-np.inf))

    def look(self, observation: Observation) -> None:
        """At the candidates of a batch, and at who has any."""
        asked = observation.mask.any(axis=-1)
        self.note(
            observation.replicas[observation.mask], observation.request[asked], observation.pool[asked]
        )

    def join(self, other: Seen) -> None:
        """What both have seen."""
        for i, bounds in enumerate(zip(other.lower, other.upper, strict=True)):
            self._extend(i, *bounds)

    @property
    def ranges(self) -> Ranges:
        """Of replicas and requests; something has been seen of both."""
        replicas, requests, _ = (np.stack(bounds) for bounds in zip(self.lower, self.upper, strict=True))
        return Ranges.of(replicas, requests)

    @property
    def pool_range(self) -> tuple[Float32, Float32]:
        """Lowest and highest of each pool feature."""
        return self.lower[-1], self.upper[-1]

    def _extend(self, i: int, lower: Float32, upper: Float32) -> None:
        self.lower[i] = np.minimum(self.lower[i], lower)
        self.upper[i] = np.maximum(self.upper[i], upper)


def survey(
    grounds: Sequence[Ground],
    length: LengthPredictor,
    settings: EvolutionSettings,
    coefficients: NDArray[np.float64],
    *,
    seed: int,
    jobs: int = 1,
) -> Seen:
    """Play `settings.survey` warm clusters of the search with these coefficients, SHAPE, and look.

    The result is the same whatever the number of processes.
    """
    practice = Practice(grounds, length, settings.practice)
    rng = np.random.default_rng([seed, _SURVEY])
    plans = [
        practice.plan(rng, ground=i % len(grounds), warmup_s=settings.warmup_s)
        for i in range(settings.survey)
    ]

    def task(group: Sequence[int]) -> Task[Seen]:
        return lambda _: _look_at(practice, [plans[i] for i in group], coefficients)

    seen = Seen()
    tasks = [task(group) for group in companions(plans, TOGETHER)]
    for found in spread(tasks, jobs, lambda _: None):
        seen.join(found)
    return seen


def _look_at(practice: Practice, plans: Sequence[Plan], coefficients: NDArray[np.float64]) -> Seen:
    choose = cheapest(np.repeat(coefficients[None], len(plans), axis=0))
    seen = Seen()

    def look_and_choose(observation: Observation) -> NDArray[np.int64]:
        seen.look(observation)
        return choose(observation)

    play([practice.make(plan) for plan in plans], look_and_choose, np.zeros(len(plans)))
    return seen
