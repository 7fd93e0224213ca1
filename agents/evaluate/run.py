"""Runs policies on the same arrivals, on clusters with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from steersman.agents.evaluate.course import Protocol, course, run_count
from steersman.agents.evaluate.factories import Contestant, PerScenario, PolicyFactory, policy_factory
from steersman.agents.evaluate.lockstep import TOGETHER, Entry, play
from steersman.agents.evaluate.table import EvaluationTable, Run
from steersman.agents.parallel import spread
from steersman.env.scenario import load_source, saturation_of
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Scenario
from steersman.traces.trace import Trace

__all__ = ["PolicyFactory", "Protocol", "evaluate", "policy_factory", "run_count"]


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
    size = max(1, min(TOGETHER // len(policies), len(places) * len(scenarios) // jobs))
    tasks = []
    for scenario in scenarios:
        saturation_of(scenario, protocol.split)
        cast = _Cast(policies, scenario, protocol)
        tasks += [
            partial(cast.play, places[first : first + size]) for first in range(0, len(places), size)
        ]
    parts = spread(tasks, jobs, on_progress or _ignore)
    return EvaluationTable(tuple(run for part in parts for run in part))


class _Cast:
    """All runs in one scenario; its trace is read when the first of them is played."""

    def __init__(
        self, policies: Mapping[str, Contestant], scenario: Scenario, protocol: Protocol
    ) -> None:
        self._contestants = {
            name: one.of(scenario.name) if isinstance(one, PerScenario) else one
            for name, one in policies.items()
        }
        self._scenario = scenario
        self._protocol = protocol
        self._source: Trace | None = None

    def play(
        self, places: Sequence[tuple[float, int]], on_progress: Callable[[float], None]
    ) -> list[Run]:
        """Everybody at these loads with these seeds."""
        if self._source is None:
            self._source = load_source(self._scenario, self._protocol.split)
        courses = [
            course(self._scenario, load, seed, self._protocol, self._source) for load, seed in places
        ]
        entries = [
            Entry(name, contestant, one)
            for one in courses
            for name, contestant in self._contestants.items()
        ]
        return play(entries, self._protocol, on_progress)


def _ignore(runs: float) -> None:
    del runs
