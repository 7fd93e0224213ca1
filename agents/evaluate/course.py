"""What an evaluation puts its policies through: how long, how often, and on which arrivals."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.table import Cell
from steersman.env.bulk import trace_length_features
from steersman.env.cluster import Cluster
from steersman.env.scenario import Split, make_trace, saturation_of
from steersman.predictors.length import FallbackLength, LengthPredictor
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

STANDARD_LOADS = (0.6, 0.8, 0.95)


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
    _fresh: dict[bool, Cluster] = field(default_factory=dict, compare=False, repr=False)

    def cluster(self, *, true_lengths: bool = False) -> Cluster:
        """A fresh cluster at the start of the course, with predicted or with true output lengths."""
        if true_lengths not in self._fresh:
            self._fresh[true_lengths] = self._made(true_lengths=true_lengths)
        return self._fresh[true_lengths].clone()  # a tenth of the time of another one

    def _made(self, *, true_lengths: bool) -> Cluster:
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
