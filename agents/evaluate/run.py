"""Runs policies on the same arrivals, on clusters with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import NamedTuple

from steersman.agents.evaluate.course import Course, Protocol, course, run_count
from steersman.agents.evaluate.factories import Contestant, PerScenario, PolicyFactory, policy_factory
from steersman.agents.evaluate.lockstep import TOGETHER, Entry, play
from steersman.agents.evaluate.table import EvaluationTable, Run
from steersman.agents.parallel import spread
from steersman.env.scenario import load_source, saturation_of
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Scenario

__all__ = ["PolicyFactory", "Protocol", "evaluate", "policy_factory", "run_count"]

COURSES = 20
"""Courses that are kept at once, at most: long ones take some megabytes each."""


def evaluate(
    policies: Mapping[str, Contestant],
    scenarios: Sequence[Scenario],
    protocol: Protocol | None = None,
    *,
    jobs: int = 1,
    on_progress: Callable[[float], None] | None = None,
) -> EvaluationTable:
    """Run every policy in every cell (scenario and load) with every seed.

    For one cell and seed all policies get the same arrivals, the same predictions of output length and
    clusters with the same seed: common random numbers.

    Args:
        policies: factories, or references, by the name that the table gives them.
        scenarios: with their saturation measured.
        jobs: processes that share the runs; the figures are the same whatever their number.
        on_progress: called now and then with the number of runs done since the last call, fractions
            included; they add up to `run_count`.

    Raises:
        ConfigError: nothing to run, or a scenario without `saturation_rps`.
    """
    protocol = protocol or Protocol()
    if not (policies and scenarios and protocol.loads and protocol.seeds):
        raise ConfigError("nothing to evaluate: give a policy, a scenario, a load and a seed")
    places = [(load, seed) for load in protocol.loads for seed in protocol.seeds]
    stages = [
        _Stage(policies, scenario, places[first : first + COURSES], protocol)
        for scenario in scenarios
        for first in range(0, len(places), COURSES)
    ]
    tasks = [(stage, part) for stage in stages for part in stage.parts(-(-jobs // len(stages)))]
    kept = _Kept()
    work = [partial(stage.play, part, kept) for stage, part in tasks]
    runs: dict[int, dict[_Seat, Run]] = {id(stage): {} for stage in stages}
    for (stage, part), played in zip(tasks, spread(work, jobs, on_progress or _ignore), strict=True):
        runs[id(stage)] |= zip(part, played, strict=True)
    return EvaluationTable(tuple(run for own in runs.values() for _, run in sorted(own.items())))


class _Seat(NamedTuple):
    """Who plays which course, by their numbers."""

    course: int
    contestant: int


class _Stage:
    """The runs of one scenario on some courses."""

    def __init__(
        self,
        policies: Mapping[str, Contestant],
        scenario: Scenario,
        places: Sequence[tuple[float, int]],
        protocol: Protocol,
    ) -> None:
        saturation_of(scenario, protocol.split)  # known, or an error at once
        self._contestants = [
            (name, one.of(scenario.name) if isinstance(one, PerScenario) else one)
            for name, one in policies.items()
        ]
        self._scenario = scenario
        self._places = places
        self._protocol = protocol

    def parts(self, least: int) -> list[list[_Seat]]:
        """All seats, in at least so many locksteps; policies of a kind sit together, since they are
        asked together."""
        kinds = [name.partition(":")[0] for name, _ in self._contestants]
        order = sorted(range(len(kinds)), key=lambda i: kinds.index(kinds[i]))
        seats = [_Seat(course, one) for one in order for course in range(len(self._places))]
        count = max(least, -(-len(seats) // TOGETHER))
        size = -(-len(seats) // count)
        return [seats[first : first + size] for first in range(0, len(seats), size)]

    def play(
        self,
        seats: Sequence[_Seat],
        kept: _Kept,
        on_progress: Callable[[float], None],
    ) -> list[Run]:
        """These seats' runs; `kept` keeps what `courses` has made."""
        courses = kept.courses(self)
        entries = [Entry(*self._contestants[seat.contestant], courses[seat.course]) for seat in seats]
        return play(entries, self._protocol, on_progress)

    def courses(self) -> list[Course]:
        """The arrivals."""
        source = load_source(self._scenario, self._protocol.split)
        return [
            course(self._scenario, load, seed, self._protocol, source) for load, seed in self._places
        ]


class _Kept:
    """The courses of the stage that was last asked for; each worker has its own."""

    def __init__(self) -> None:
        self._stage: _Stage | None = None
        self._courses: list[Course] = []

    def courses(self, stage: _Stage) -> list[Course]:
        """Made at the first call for a stage."""
        if self._stage is not stage:
            self._courses = stage.courses()
            self._stage = stage
        return self._courses


def _ignore(runs: float) -> None:
    del runs
