"""Runs policies on the same arrivals, on clusters with the same seeds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.figures import summarise
from steersman.agents.evaluate.references import Reference, look_ahead
from steersman.agents.evaluate.table import Cell, EvaluationTable, Run
from steersman.agents.guard import Clock, Guard
from steersman.agents.policies import make_policy
from steersman.agents.policy import NO_CANDIDATE, Policy
from steersman.env.cluster import Cluster
from steersman.env.scenario import Split, load_source, make_trace, saturation_of
from steersman.env.vector import ClusterBatch
from steersman.predictors.bulk import trace_length_features
from steersman.predictors.latency import LatencyPredictor
from steersman.predictors.length import FallbackLength, LengthPredictor
from steersman.traces.errors import ConfigError
from steersman.traces.schema import Scenario
from steersman.traces.trace import Trace

PolicyFactory = Callable[[int, Clock], Policy]
"""Makes a fresh policy from a seed and the clock of the simulation."""


@dataclass(frozen=True)
class PerScenario:
    """Other constants in every scenario, as a baseline tuned for each has."""

    of: Callable[[str], PolicyFactory]
    """The factory for a scenario's name; a ConfigError if there is none."""


Contestant = PolicyFactory | Reference | PerScenario

STANDARD_LOADS = (0.6, 0.8, 0.95)
LEAD_S = 3.0
"""For so long before the measured window the lookahead decides too, to count in a state of its own."""
_REPORTS = 50
"""Calls of `on_progress` per cell, about."""


@dataclass(frozen=True)
class Protocol:
    """How long and how often; the defaults are what claims need."""

    loads: tuple[float, ...] = STANDARD_LOADS
    """Arrival rates over the scenario's saturation."""
    seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
    requests: int = 5000
    """Arrivals in the measured window, at least."""
    window_s: float = 600.0
    """Length of the measured window, at least."""
    warmup_s: float = 120.0
    """Before the measured window; not counted."""
    tail_s: float = 0.0
    """Arrivals that go on after the window, not counted: a short window would end too quietly."""
    drain_s: float = 600.0
    """For what is in flight when arrivals stop; the rest is unfinished."""
    split: Split = "evaluation"
    """Part of the trace that arrivals are drawn from."""
    length: LengthPredictor = field(default_factory=FallbackLength)
    """Predicts output lengths, for all policies alike."""


def policy_factory(
    name: str,
    options: Mapping[str, object] | None = None,
    latency: LatencyPredictor | None = None,
) -> PolicyFactory:
    """The factory of a policy of `agents/policies`; arguments as of `make_policy`.

    Raises:
        ConfigError: unknown name or option; at once, not when the run begins.
    """
    make_policy(name, seed=0, options=options)

    def make(seed: int, clock: Clock) -> Policy:
        del clock
        return make_policy(name, seed=seed, options=options, latency=latency)

    return make


def evaluate(
    policies: Mapping[str, Contestant],
    scenarios: Sequence[Scenario],
    protocol: Protocol | None = None,
    *,
    on_progress: Callable[[float], None] | None = None,
) -> EvaluationTable:
    """Run every policy in every cell (scenario and load) with every seed.

    For one cell and seed all policies get the same arrivals, the same predictions of output length and
    clusters with the same seed: common random numbers.

    Args:
        policies: factories, or references, by the name that the table gives them.
        scenarios: with their saturation measured.
        on_progress: called now and then with the number of runs done since the last call, fractions
            included; they add up to `run_count`.

    Raises:
        ConfigError: nothing to run, or a scenario without `saturation_rps`.
    """
    protocol = protocol or Protocol()
    if not (policies and scenarios and protocol.loads and protocol.seeds):
        raise ConfigError("nothing to evaluate: give a policy, a scenario, a load and a seed")
    runs: list[Run] = []
    for scenario in scenarios:
        source = load_source(scenario, protocol.split)
        here = {
            name: one.of(scenario.name) if isinstance(one, PerScenario) else one
            for name, one in policies.items()
        }
        for load in protocol.loads:
            courses = [course(scenario, load, seed, protocol, source) for seed in protocol.seeds]
            places = [
                _Place(name, contestant, course)
                for course in courses
                for name, contestant in here.items()
            ]
            _play(places, protocol.warmup_s, on_progress or _ignore)
            runs += [place.finish(protocol) for place in places]
    return EvaluationTable(tuple(runs))


_MARGINAL = policy_factory("marginal-cost")


def run_count(policies: int, scenarios: int, protocol: Protocol) -> int:
    """How many runs an evaluation makes."""
    return policies * scenarios * len(protocol.loads) * len(protocol.seeds)


@dataclass(frozen=True)
class Course:
    """What all policies have in common in one cell with one seed."""

    scenario: Scenario
    cell: Cell
    seed: int
    trace: Trace
    quantiles: NDArray[np.float64]
    features: NDArray[np.float32]
    end_s: float
    """Of the measured window."""

    def cluster(self, *, true_lengths: bool = False) -> Cluster:
        """A fresh cluster at the start of the course, with predicted or with true output lengths."""
        truth = np.repeat(np.maximum(self.trace.output_tokens, 1)[:, None], 2, axis=1)
        return Cluster(
            self.scenario.replicas,
            self.trace,
            output_quantiles=truth if true_lengths else self.quantiles,
            length_features=self.features,
            staleness=self.scenario.staleness,
            prefix_cache=self.scenario.prefix_cache,
            seed=self.seed,
            conditions=self.scenario.conditions,
        )


class _Place:
    """One policy on one cluster."""

    def __init__(self, name: str, contestant: PolicyFactory | Reference, course: Course) -> None:
        self._name = name
        self._course = course
        self.replicas = len(course.scenario.replicas)
        self._looks_ahead = contestant is Reference.LOOKAHEAD
        self.cluster = course.cluster(true_lengths=isinstance(contestant, Reference))
        factory = _MARGINAL if isinstance(contestant, Reference) else contestant
        self.policy = factory(course.seed, lambda: self.cluster.now_s)

    def asks_truth(self, start_s: float) -> bool:
        """Whether the pending request is to be decided by looking ahead: only those that matter."""
        return self._looks_ahead and start_s - LEAD_S <= self.cluster.now_s < self._course.end_s

    def finish(self, protocol: Protocol) -> Run:
        """Drain, and sum up."""
        self.cluster.finish(protocol.drain_s)
        figures = summarise(
            self.cluster.outcomes(),
            start_s=protocol.warmup_s,
            end_s=self._course.end_s,
            replicas=self.replicas,
        )
        fallbacks: dict[str, int] = {}
        if isinstance(self.policy, Guard):
            fallbacks = {reason.value: count for reason, count in self.policy.fallbacks.items()}
        return Run(self._name, self._course.cell, self._course.seed, figures, fallbacks)


def course(scenario: Scenario, load: float, seed: int, protocol: Protocol, source: Trace) -> Course:
    """Arrivals and predictions for one load and seed.

    Args:
        source: `load_source(scenario, protocol.split)`.

    Raises:
        ConfigError: the scenario has no `saturation_rps`.
    """
    rate_rps = load * saturation_of(scenario, protocol.split)
    window_s = max(protocol.window_s, protocol.requests / rate_rps)
    end_s = protocol.warmup_s + window_s
    duration_s = end_s + protocol.tail_s
    trace = make_trace(
        scenario, seed, duration_s=duration_s, load=load, split=protocol.split, source=source
    )
    features = trace_length_features(trace)
    quantiles = protocol.length.predict(features)[:, :2]
    return Course(scenario, Cell(scenario.name, load), seed, trace, quantiles, features, end_s)


def _play(places: Sequence[_Place], start_s: float, on_progress: Callable[[float], None]) -> None:
    """All arrivals of one cell, in lockstep: one observation for all clusters is far cheaper."""
    batch = ClusterBatch([place.cluster for place in places])
    total = sum(len(place.cluster.trace) for place in places)
    choices = np.full(len(places), NO_CANDIDATE, dtype=np.int64)
    waiting = 0
    while True:
        asked = batch.next_requests() >= 0
        if not asked.any():
            break
        seen = batch.observe()
        truthful = []
        for i in np.flatnonzero(asked).tolist():
            choices[i] = places[i].policy.decide(seen.single(i, places[i].replicas)).choice
            if places[i].asks_truth(start_s):
                truthful.append(i)
        if truthful:
            choices[truthful] = look_ahead([places[i].cluster for i in truthful])
        batch.dispatch(choices, seen)
        waiting += int(asked.sum())
        if waiting * _REPORTS > total:
            on_progress(len(places) * waiting / total)
            waiting = 0
    on_progress(len(places) * waiting / total if total else len(places))


def _ignore(runs: float) -> None:
    del runs
