"""The same budget for every baseline: differential evolution over its constants, on the tuning split."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import orjson
from numpy.typing import NDArray

from steersman.agents.evaluate.course import Course, Protocol, course, run_count
from steersman.agents.evaluate.factories import policy_factory
from steersman.agents.evaluate.lockstep import play
from steersman.agents.evaluate.spaces import Value, options_at, place_of, published, space_of
from steersman.agents.evaluate.table import EvaluationTable
from steersman.env.scenario import load_source, saturation_of
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Scenario

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


@dataclass
class Notebook:
    """Scores that are known, so that an interrupted run goes on where it was: the search itself is
    repeated, and asks the same questions.

    Args:
        path: JSON lines, appended to; None: nothing is kept.
        key: of the task (policy, scenarios, protocol): lines of other tasks are ignored.
    """

    path: Path | None
    key: str
    scores: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is None or not self.path.exists():
            return
        data = self.path.read_bytes()
        if data and not data.endswith(b"\n"):  # cut short when a run was killed
            with self.path.open("ab") as file:
                file.write(b"\n")
        for line in data.splitlines():
            try:
                entry = orjson.loads(line)
            except orjson.JSONDecodeError:
                continue
            if entry["task"] == self.key:
                self.scores[entry["options"]] = entry["score"]

    def know(self, options: str, score: float) -> None:
        """Write a score down."""
        self.scores[options] = score
        if self.path is not None:
            entry = {"task": self.key, "options": options, "score": score}
            with self.path.open("ab") as file:
                file.write(orjson.dumps(entry, option=orjson.OPT_APPEND_NEWLINE))


def tune(
    policy: str,
    scenarios: Sequence[Scenario],
    *,
    protocol: Protocol = TUNING,
    evaluations: int = EVALUATIONS,
    seed: int = 0,
    notebook: Path | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> Tuned:
    """Find the constants with the least mean log J over the cells of these scenarios.

    SciPy's differential evolution over the unit cube of `spaces.py`, from the published constants and a
    Latin hypercube. Every candidate meets the same arrivals.

    Args:
        evaluations: sets of constants tried, a multiple of POPULATION.
        seed: of the search.
        notebook: file in which scores are kept; give the same again to resume.
        on_progress: called with the runs done since the last call; they add up to
            `evaluations * run_count(1, ...)`.

    Raises:
        ConfigError: the policy has nothing to tune, or a wrong number of evaluations.
    """
    from scipy.optimize import differential_evolution

    if evaluations % POPULATION or evaluations < POPULATION:
        raise ConfigError(f"evaluations = {evaluations} must be a multiple of {POPULATION}")
    space, start = space_of(policy), published(policy)
    task = {
        "policy": policy,
        "scenarios": [(one.name, saturation_of(one, protocol.split)) for one in scenarios],
        "protocol": [protocol.loads, protocol.seeds, protocol.requests, protocol.split],
    }
    judge = _Judge(policy, scenarios, protocol, Notebook(notebook, _text(task)), on_progress)

    def scores(points: NDArray[np.float64]) -> NDArray[np.float64]:
        return judge.scores([options_at(space, point) for point in points.T])

    rng = np.random.default_rng(seed)
    found = differential_evolution(
        scores,
        bounds=[(0.0, 1.0)] * len(space),
        init=_first(place_of(space, start), rng),
        maxiter=evaluations // POPULATION - 1,
        vectorized=True,
        updating="deferred",
        polish=False,
        tol=0.0,
        rng=rng,
    )
    best = options_at(space, found.x)
    # The published constants themselves may lie outside the space; nothing worse is an improvement.
    ratio = float(np.exp(found.fun - judge.scores([start])[0]))
    if ratio > 1.0:
        best, ratio = start, 1.0
    return Tuned(policy, best, ratio, evaluations)


class _Judge:
    """Mean log J of sets of constants; never the same set twice."""

    def __init__(
        self,
        policy: str,
        scenarios: Sequence[Scenario],
        protocol: Protocol,
        notebook: Notebook,
        on_progress: Callable[[float], None] | None,
    ) -> None:
        self._policy = policy
        self._scenarios = scenarios
        self._protocol = protocol
        self._notebook = notebook
        self._on_progress = on_progress or _ignore
        self._courses: list[Course] = []

    def scores(self, sets: Sequence[Options]) -> NDArray[np.float64]:
        """(sets,)"""
        named = {_text(options): options for options in sets}
        unknown = {name: o for name, o in named.items() if name not in self._notebook.scores}
        if unknown:
            factories = {name: policy_factory(self._policy, o) for name, o in unknown.items()}
            runs = play(factories, self._prepared(), self._protocol, self._on_progress)
            table = EvaluationTable(tuple(runs))
            for name in unknown:
                self._notebook.know(name, _mean_log_j(table, name))
        known = len(sets) - len(unknown)
        self._on_progress(float(run_count(known, len(self._scenarios), self._protocol)))
        return np.array([self._notebook.scores[_text(options)] for options in sets])

    def _prepared(self) -> list[Course]:
        """The arrivals, the same for every set of constants: made when they are first needed."""
        if not self._courses:
            p = self._protocol
            for scenario in self._scenarios:
                source = load_source(scenario, p.split)
                self._courses += [
                    course(scenario, x, seed, p, source) for x in p.loads for seed in p.seeds
                ]
        return self._courses


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
