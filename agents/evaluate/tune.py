"""The same budget for every baseline: differential evolution over its constants, on the tuning split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from steersman.agents.evaluate.course import Course, Protocol, course, run_count
from steersman.agents.evaluate.evolution import evolve
from steersman.agents.evaluate.factories import policy_factory
from steersman.agents.evaluate.lockstep import Entry, play
from steersman.agents.evaluate.notebook import Notebook
from steersman.agents.evaluate.spaces import Value, options_at, place_of, published, space_of
from steersman.agents.evaluate.table import EvaluationTable, Run
from steersman.env.scenario import load_source, saturation_of
from steersman.predictors.latency import LatencyPredictor
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Scenario

EVALUATIONS = 200
POPULATION = 10
"""Constants tried at once, in lockstep on the same arrivals."""
TUNING = Protocol(seeds=(1_000,), requests=1500, window_s=0.0, warmup_s=30.0, tail_s=10.0, split="tune")
"""An evaluation: an episode of 1 500 counted requests at each standard load."""

Options = dict[str, Value]


@dataclass(frozen=True)
class Tuned:
    """The best constants found, and what they are worth."""

    policy: str
    options: Options
    score: float
    """exp(mean over cells and seeds of log(J / J with the published constants)), where it was tuned."""
    evaluations: int


@dataclass(frozen=True)
class Search:
    """For whose constants, and where."""

    policy: str
    scenarios: tuple[Scenario, ...]
    latency: LatencyPredictor | None = None
    """What `predicted-latency` asks; None: the analytic estimate."""


def tune(policy: str, scenarios: Sequence[Scenario], **options: Any) -> Tuned:
    """One search; see `tune_together`, which has the options."""
    return tune_together([Search(policy, tuple(scenarios))], **options)[0]


def tune_together(
    searches: Sequence[Search],
    *,
    protocol: Protocol = TUNING,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    notebook: Path | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[Tuned]:
    """Find the constants with the least mean log J over the cells of each search's scenarios.

    Differential evolution over the unit cube of `spaces.py`, from the published constants and a Latin
    hypercube. Every candidate meets the same arrivals. The searches go on side by side, since many
    clusters are played faster together; what each finds does not depend on the others.

    Args:
        evaluations: sets of constants tried by each, a multiple of POPULATION.
        seed: of every search.
        notebook: file in which scores are kept; give the same again to resume.
        on_progress: called with the runs done since the last call; those of a search add up to
            `run_count(evaluations + 1, ...)`.

    Raises:
        ConfigError: a policy has nothing to tune, or a wrong number of evaluations.
    """
    if evaluations % POPULATION or evaluations < POPULATION:
        raise ConfigError(f"evaluations = {evaluations} must be a multiple of {POPULATION}")
    arrivals = _Arrivals(protocol)
    seekers = [_Seeker(one, arrivals, evaluations, seed, notebook) for one in searches]
    while any(seeker.asked for seeker in seekers):
        entries = [seeker.entries() for seeker in seekers]
        playing = [entry for own in entries for entry in own]
        runs = play(playing, protocol, on_progress or _ignore) if playing else []
        for seeker, own in zip(seekers, entries, strict=True):
            known = seeker.answer(runs[: len(own)])
            if on_progress is not None:
                on_progress(float(known))
            runs = runs[len(own) :]
    return [seeker.found() for seeker in seekers]


class _Arrivals:
    """The courses of each scenario, the same for every set of constants: made when first needed."""

    def __init__(self, protocol: Protocol) -> None:
        self.protocol = protocol
        self._courses: dict[str, list[Course]] = {}

    def of(self, scenario: Scenario) -> list[Course]:
        """At all loads, with all seeds."""
        if scenario.name not in self._courses:
            source = load_source(scenario, self.protocol.split)
            self._courses[scenario.name] = [
                course(scenario, load, seed, self.protocol, source)
                for load in self.protocol.loads
                for seed in self.protocol.seeds
            ]
        return self._courses[scenario.name]


class _Seeker:
    """One search: what it asks, and what it has found. It never asks for the same set twice."""

    def __init__(
        self, search: Search, arrivals: _Arrivals, evaluations: int, seed: int, notebook: Path | None
    ) -> None:
        self._search = search
        self._arrivals = arrivals
        self._evaluations = evaluations
        self._space = space_of(search.policy)
        self._notebook = Notebook(notebook, _task(search, arrivals.protocol))
        rng = np.random.default_rng(seed)
        first = _first(place_of(self._space, published(search.policy)), rng)
        self._evolution = evolve(first, evaluations // POPULATION, rng)
        self._best: tuple[Options, float] | None = None
        self._result: Tuned | None = None
        self.asked = self._sets(next(self._evolution))
        """Sets of constants whose scores it waits for; empty when it has found what it can."""

    def entries(self) -> list[Entry]:
        """Who has to play for the answer."""
        return [
            Entry(name, policy_factory(self._search.policy, options, self._search.latency), one)
            for name, options in self._unknown().items()
            for scenario in self._search.scenarios
            for one in self._arrivals.of(scenario)
        ]

    def answer(self, runs: Sequence[Run]) -> int:
        """Go on with what the entries did; returns how many runs were known without them."""
        if not self.asked:
            return 0
        table = EvaluationTable(tuple(runs))
        for name in table.policies if runs else ():
            self._notebook.know(name, _mean_log_j(table, name))
        wanted = len(self.asked) * self._runs_each()
        scores = np.array([self._notebook.scores[_text(options)] for options in self.asked])
        self._go_on(scores)
        return wanted - len(runs)

    def found(self) -> Tuned:
        """The result, when nothing is asked any more."""
        assert self._result is not None
        return self._result

    def _go_on(self, scores: NDArray[np.float64]) -> None:
        if self._best is None:
            try:
                self.asked = self._sets(self._evolution.send(scores))
            except StopIteration as end:
                point, value = end.value
                self._best = options_at(self._space, point), value
                self.asked = [published(self._search.policy)]
            return
        # The published constants themselves may lie outside the space; nothing worse is an improvement.
        best, value = self._best
        ratio = float(np.exp(value - scores[0]))
        if ratio > 1.0:
            best, ratio = self.asked[0], 1.0
        self._result = Tuned(self._search.policy, best, ratio, self._evaluations)
        self.asked = []

    def _sets(self, points: NDArray[np.float64]) -> list[Options]:
        return [options_at(self._space, point) for point in points]

    def _unknown(self) -> dict[str, Options]:
        named = {_text(options): options for options in self.asked}
        return {name: one for name, one in named.items() if name not in self._notebook.scores}

    def _runs_each(self) -> int:
        return run_count(1, len(self._search.scenarios), self._arrivals.protocol)


def _task(search: Search, protocol: Protocol) -> str:
    """Names what a score was measured on."""
    task = {
        "policy": search.policy,
        "scenarios": [(one.name, saturation_of(one, protocol.split)) for one in search.scenarios],
        "protocol": [protocol.loads, protocol.seeds, protocol.requests, protocol.split],
    }
    models = [protocol.length.version, search.latency.version if search.latency else ""]
    return _text(task | ({"models": models} if any(models) else {}))


def _first(start: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """The published constants and a Latin hypercube, (POPULATION, dimensions)."""
    strata = [rng.permutation(POPULATION) for _ in start]
    points = (np.stack(strata, axis=1) + rng.random((POPULATION, len(start)))) / POPULATION
    points[0] = start
    return points


def _mean_log_j(table: EvaluationTable, policy: str) -> float:
    return float(np.mean([np.log(table.by_seed(policy, cell)).mean() for cell in table.cells]))


def _ignore(runs: float) -> None:
    del runs


def _text(value: Mapping[str, object]) -> str:
    return orjson.dumps(value, option=orjson.OPT_SORT_KEYS).decode()
