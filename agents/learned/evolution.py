"""Evolution of the term weights on the goal itself: J of whole episodes, and their slowest requests.

Each generation draws new clusters, and every candidate plays all of them, so that candidates differ by
what they do and not by whom they met. A cluster is warm when its candidates part, since the search's
mean has played it up to there: in a pool that is still filling it pays to fill all replicas alike, and
caches have room for everybody; what that leads to shows only minutes later. Early generations play short
episodes, where prompts share nothing on empty clusters: cheap, and a good place to begin. The search is
CMA-ES (Hansen and Ostermeier, "Completely derandomized self-adaptation in evolution strategies", 2001),
which needs only the order of the candidates, and grows along directions that keep paying. Compared is

    mean over clusters of  clip(d log J) + clip(tail_weight * d log max(T, tail_allowance * T0))
                           + clip(loss_weight * d log max(J, J0)),

each clipped to ± most_difference, where T is the tail, the mean TTFT of the slowest requests, T0 and
J0 are of marginal cost, and d the difference from the median over the candidates. J alone lets
requests of the lower classes wait as long as it takes; T keeps them in mind. A tail that is short
enough is worth nothing more: to shorten it further costs others their objectives. What is lost
somewhere counts more than what is gained elsewhere, since who replaces marginal cost wants to be worse
off nowhere. Clipped, since near saturation a few episodes run away and would outvote all the others.
The result is the mean of the search averaged over its last generations, in which single lucky ones do
not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from cmaes import CMA
from numpy.typing import NDArray

from steersman.agents.learned.config import EvolutionSettings
from steersman.agents.learned.ground import Ground
from steersman.agents.learned.playing import Choose, Played, play, warm_up
from steersman.agents.learned.practice import Plan, Practice, companions
from steersman.agents.learned.weighing import SHAPE
from steersman.agents.learned.weighing_code import weighed_costs
from steersman.agents.parallel import Task, spread
from steersman.predictors.length import LengthPredictor
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Observation

TOGETHER = 60
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
        self._grounds = grounds
        self._length = length
        self._seed = seed
        self._jobs = jobs
        self.told: list[list[float]] = []
        """What was compared, of each generation: enough, with the seed, to repeat the search."""
        self._begin(start, seed)

    def step(self) -> Generation:
        """One generation."""
        points = self._ask()
        zero = np.zeros_like(points[0])
        played = np.stack([*points, self._search.mean, zero]).reshape(-1, *SHAPE)
        played_j, played_tail_s = self._play(played)
        with np.errstate(divide="ignore"):
            log_j, log_tail = np.log(played_j), np.log(played_tail_s)
        # Of an episode in which nobody arrived while it counted there is nothing to compare.
        known = np.isfinite(log_j + log_tail).all(axis=1)
        if not known.any():
            raise ConfigError(
                "evolution.practice: nobody arrived while an episode counted; "
                "give more episode_requests, or a longer episode_s"
            )
        log_j, log_tail = log_j[known], log_tail[known]
        least = log_tail[:, -1:] + np.log(self._settings.tail_allowance)
        weighed_tail = self._settings.tail_weight * np.maximum(log_tail, least)
        weighed_loss = self._settings.loss_weight * np.maximum(log_j, log_j[:, -1:])
        aside = [self._aside(each[:, :-2]) for each in (log_j, weighed_tail, weighed_loss)]
        self._tell(points, np.sum(aside, axis=0).mean(axis=0).tolist())
        over, over_tail = ((each - each[:, -1:]).mean(axis=0) for each in (log_j, log_tail))
        told = np.exp([over[-2], over[:-2].mean(), over_tail[-2]])
        return Generation(*told.tolist())

    def repeat(self, told: Sequence[Sequence[float]]) -> None:
        """Go where a search that was told this had come; nothing is played for it."""
        for values in told:
            self._tell(self._ask(), list(values))

    @property
    def result(self) -> NDArray[np.float64]:
        """The coefficients so far, SHAPE."""
        last = max(1, int((len(self._means) - 1) * self._settings.averaged))
        mean: NDArray[np.float64] = np.mean(self._means[-last:], axis=0).reshape(SHAPE)
        return mean

    @property
    def _is_early(self) -> bool:
        return len(self.told) < self._settings.early.generations

    def _begin(self, start: NDArray[np.float64], seed: int) -> None:
        """The early generations, or the others."""
        s = self._settings
        phase = s.early if self._is_early else s
        self._practice = Practice(self._grounds, self._length, phase.practice)
        mean = start.ravel().astype(np.float64)
        self._search = CMA(mean=mean, sigma=phase.spread, population_size=s.population, seed=seed)
        self._means = [mean]

    def _ask(self) -> list[NDArray[np.float64]]:
        return [self._search.ask() for _ in range(self._settings.population)]

    def _tell(self, points: Sequence[NDArray[np.float64]], values: list[float]) -> None:
        self._search.tell(list(zip(points, values, strict=True)))
        self.told.append(values)
        self._means.append(self._search.mean.copy())
        if len(self.told) == self._settings.early.generations:
            self._begin(self.result, self._seed + 1)

    def _aside(self, logarithms: NDArray[np.float64]) -> NDArray[np.float64]:
        """From the candidates' median, bounded; (clusters, candidates)."""
        bound = self._settings.most_difference
        middle = np.median(logarithms, axis=1, keepdims=True)
        return np.clip(logarithms - middle, -bound, bound)

    def _play(self, coefficients: NDArray[np.float64]) -> Played:
        """Every cluster of this generation under each set of coefficients, both (clusters, sets)."""
        rng = np.random.default_rng([self._seed, _EVOLUTION, len(self.told)])
        count = self._settings.clusters
        plans = [
            self._practice.plan(rng, ground=number, warmup_s=self._warmup_s(number))
            for number in (i % len(self._grounds) for i in range(count))
        ]
        groups = companions(plans, max(1, TOGETHER // len(coefficients)))
        mean = self._search.mean.reshape(SHAPE)

        def task(group: Sequence[int]) -> Task[Played]:
            return lambda _: self._play_group([plans[i] for i in group], mean, coefficients)

        found = Played(*np.empty((2, count, len(coefficients))))
        for group, played in zip(
            groups, spread([task(group) for group in groups], self._jobs, lambda _: None), strict=True
        ):
            found.cost[group], found.tail_s[group] = played
        return found

    def _warmup_s(self, ground: int) -> tuple[float, float]:
        is_cold = self._is_early and not self._grounds[ground].reuses
        return (0.0, 0.0) if is_cold else self._settings.warmup_s

    def _play_group(
        self, plans: Sequence[Plan], mean: NDArray[np.float64], coefficients: NDArray[np.float64]
    ) -> Played:
        """Both (plans, sets)."""
        begin_s, end_s = np.array([(plan.begin_s, plan.end_s) for plan in plans]).T
        alone = np.repeat(mean[None], len(plans), axis=0)
        drawn = [self._practice.make(plan) for plan in plans]
        clusters = warm_up(drawn, cheapest(alone), begin_s)
        sets = len(coefficients)
        everybody = [cluster for cluster in clusters for _ in range(sets)]
        counted_s = np.repeat(begin_s + self._settings.settling * (end_s - begin_s), sets)
        cost, tail_s = play(everybody, cheapest(np.tile(coefficients, (len(plans), 1, 1))), counted_s)
        return Played(cost.reshape(-1, sets), tail_s.reshape(-1, sets))


def cheapest(coefficients: NDArray[np.float64]) -> Choose:
    """Chooses the candidate of the least weighed cost, each cluster with its own coefficients."""

    def choose(seen: Observation) -> NDArray[np.int64]:
        choices: NDArray[np.int64] = weighed_costs(seen, coefficients).argmin(axis=-1)
        return choices

    return choose
