"""Evolution of the term weights on the goal itself: J of whole episodes, and their slowest requests.

Each generation draws new clusters, and every candidate plays all of them, so that candidates differ by
what they do and not by whom they met. The search is CMA-ES (Hansen and Ostermeier, "Completely
derandomized self-adaptation in evolution strategies", 2001): it needs only the order of the candidates,
and grows along directions that keep paying. What is compared is

    mean over clusters of  clip(d log J) + clip(tail_weight * d log T),  both to ± most_difference

where T is the tail, the mean TTFT of the slowest requests, and d the difference from the median over the
candidates. J alone lets requests of the lower classes wait as long as it takes; T keeps them in mind.
Clipped, since near saturation a few episodes run away and would outvote all the others. The result is
the mean of the search averaged over its last generations, in which single lucky ones do not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from cmaes import CMA
from numpy.typing import NDArray
from torch import Tensor

from steersman.agents.learned.config import EvolutionSettings
from steersman.agents.learned.ground import Ground
from steersman.agents.learned.playing import Played, play
from steersman.agents.learned.practice import Practice
from steersman.agents.learned.weighing import SHAPE, weighed_cost
from steersman.agents.parallel import Task, spread
from steersman.env.cluster import Cluster
from steersman.predictors.length import LengthPredictor
from steersman.traces.schema import Observation

TOGETHER = 96
"""Episodes in one lockstep, about: more gain no speed."""
_EVOLUTION = 2
"""Sets the seeds of the clusters apart from those of other learners."""


class Generation(NamedTuple):
    """How one went: cost over marginal cost's on the same clusters, geometric means."""

    centre: float
    """Of the search's mean, before it moved."""
    population: float
    tail: float
    """TTFT of the slowest requests under the search's mean, over marginal cost's."""


class Evolution:
    """A search for coefficients of `weighed_cost`.

    Args:
        grounds: all are played equally often.
        start: coefficients, SHAPE, that the search begins at.
        jobs: processes; the result is the same whatever their number.
    """

    def __init__(
        self,
        grounds: Sequence[Ground],
        length: LengthPredictor,
        settings: EvolutionSettings,
        start: NDArray[np.float64],
        *,
        seed: int,
        jobs: int = 1,
    ) -> None:
        self._settings = settings
        self._practice = Practice(grounds, length, settings.practice)
        self._grounds = len(grounds)
        self._seed = seed
        self._jobs = jobs
        self._search = CMA(
            mean=start.ravel().astype(np.float64),
            sigma=settings.spread,
            population_size=settings.population,
            seed=seed,
        )
        self.told: list[list[float]] = []
        """What was compared, of each generation: enough, with the seed, to repeat the search."""
        self._means = [self._search.mean.copy()]

    def step(self) -> Generation:
        """One generation."""
        points = self._ask()
        zero = np.zeros_like(points[0])
        played = np.stack([*points, self._search.mean, zero]).reshape(-1, *SHAPE)
        played_j, played_tail_s = self._play(played)
        log_j, log_tail = np.log(played_j), np.log(played_tail_s)
        weighed_tail = self._settings.tail_weight * log_tail
        aside = self._aside(log_j[:, :-2]) + self._aside(weighed_tail[:, :-2])
        self._tell(points, aside.mean(axis=0).tolist())
        over, over_tail = ((known - known[:, -1:]).mean(axis=0) for known in (log_j, log_tail))
        told = np.exp([over[-2], over[:-2].mean(), over_tail[-2]])
        return Generation(*told.tolist())

    def repeat(self, told: Sequence[Sequence[float]]) -> None:
        """Go where a search that was told this had come; nothing is played for it."""
        for values in told:
            self._tell(self._ask(), list(values))

    @property
    def result(self) -> NDArray[np.float64]:
        """The coefficients so far, SHAPE."""
        last = max(1, int(len(self.told) * self._settings.averaged))
        mean: NDArray[np.float64] = np.mean(self._means[-last:], axis=0).reshape(SHAPE)
        return mean

    def _ask(self) -> list[NDArray[np.float64]]:
        return [self._search.ask() for _ in range(self._settings.population)]

    def _tell(self, points: Sequence[NDArray[np.float64]], values: list[float]) -> None:
        self._search.tell(list(zip(points, values, strict=True)))
        self.told.append(values)
        self._means.append(self._search.mean.copy())

    def _aside(self, logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        """From the candidates' median, bounded; (clusters, candidates)."""
        bound = self._settings.most_difference
        middle = np.median(logarithms, axis=1, keepdims=True)
        return np.clip(logarithms - middle, -bound, bound)

    def _play(self, coefficients: NDArray[np.float64]) -> Played:
        """Every cluster of this generation under each set of coefficients, both (clusters, sets)."""
        rng = np.random.default_rng([self._seed, _EVOLUTION, len(self.told)])
        count = self._settings.clusters
        clusters = [self._practice.draw(rng, ground=i % self._grounds) for i in range(count)]
        # Alike in length and size they keep each other company to the end.
        order = sorted(range(count), key=lambda i: (len(clusters[i].trace), len(clusters[i].replicas)))
        size = max(1, TOGETHER // len(coefficients))
        groups = [order[first : first + size] for first in range(0, count, size)]
        known = torch.as_tensor(coefficients, dtype=torch.float32)

        def task(group: Sequence[int]) -> Task[Played]:
            return lambda _: _played([clusters[i] for i in group], known, self._settings.settling)

        found = Played(*np.empty((2, count, len(coefficients))))
        for group, played in zip(
            groups, spread([task(group) for group in groups], self._jobs, lambda _: None), strict=True
        ):
            found.cost[group], found.tail_s[group] = played
        return found


def _played(clusters: Sequence[Cluster], coefficients: Tensor, settling: float) -> Played:
    """Both (clusters, sets)."""
    torch.set_num_threads(1)  # a fork has none of the threads that this process may have had
    sets = len(coefficients)
    rows = coefficients.repeat(len(clusters), 1, 1)

    def choose(seen: Observation) -> NDArray[np.int64]:
        context = torch.from_numpy(np.concatenate([seen.request, seen.pool], axis=-1))
        cost = weighed_cost(torch.from_numpy(seen.replicas), context, rows).numpy()
        return np.asarray(np.where(seen.mask, cost, np.inf).argmin(axis=-1), dtype=np.int64)

    everybody = [cluster for cluster in clusters for _ in range(sets)]
    cost, tail_s = play(everybody, choose, settling)
    return Played(cost.reshape(-1, sets), tail_s.reshape(-1, sets))
