"""Labels for the latency model: what the cluster model did, and what a router knew before.

Every run plays a resampled stretch of the trace on its own mix of hardware, at its own load and
staleness, under a policy that mostly takes the least marginal cost and sometimes any replica: the model
must know the states that good routing leads to, and what would happen off its path. In most runs lengths
are scaled by factors of the run's own, so that the model learns what a mix of traffic does rather than
this trace's mix: on later traffic with longer answers, a model without it was worse at TPOT than the
analytic estimate.

What arrives in a run's first and last 20 s is played and not counted: a cluster that starts empty or
sees no more arrivals is in a state that service hardly knows, and TPOT errors were twice as large there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from steersman.agents.fit.mixes import draw_mix, scaled, stretch
from steersman.env.bulk import output_quantiles
from steersman.env.cluster import Cluster
from steersman.env.saturation import SaturationEstimate
from steersman.env.scenario import load_source
from steersman.env.vector import ClusterBatch
from steersman.predictors.features import REPLICA_INDEX
from steersman.predictors.latency import LATENCY_FEATURES, latency_rows
from steersman.predictors.length import LengthPredictor
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.scenario import ReplicaSpec, Scenario
from steersman.traces.trace import Trace

LEAST_LOAD, MOST_LOAD = 0.3, 1.3
MEASURED_LOADS = (0.4, 0.6, 0.8, 0.95, 1.05, 1.2)
"""Loads of the runs that measure: those of docs/evaluation.md."""
RANDOM_SHARES = (0.1, 0.3, 1.0)
"""Shares of decisions drawn at random, one per run."""
LENGTH_SPREAD = 0.4
"""Standard deviation of the log of a run's factors on prompt and output lengths."""
CALIBRATING = 1 / 3
"""Share of the runs to learn from, the last, that play the newest traffic as it is."""
NEWEST = 0.6
"""The newest traffic begins at this share of the trace's time."""
WARMUP_S = TAIL_S = 20.0
"""Played before and after what is counted."""

_MARGINAL_COST = REPLICA_INDEX["marginal_cost"]


@dataclass(frozen=True)
class Times:
    """When decisions were made and ended, by the clock of each run. All arrays have shape (n,)."""

    run: NDArray[np.int64]
    decided_s: NDArray[np.float64]
    ended_s: NDArray[np.float64]


@dataclass(frozen=True)
class LatencySamples:
    """Decisions and what became of them. All arrays have one row per decision that ended well."""

    rows: NDArray[np.float32]
    """(n, len(LATENCY_FEATURES)): the chosen candidate, as known at the decision."""
    ttft_s: NDArray[np.float64]
    tpot_s: NDArray[np.float64]
    """0 for an answer of one token."""
    load: NDArray[np.float64]
    """Of the run, over the saturation of its mix; NaN where it is unknown (a router's log)."""
    times: Times | None = None
    """None where nobody kept them."""

    def __len__(self) -> int:
        return len(self.ttft_s)


@dataclass(frozen=True)
class Run:
    """One simulated run."""

    replicas: tuple[ReplicaSpec, ...]
    load: float
    random_share: float
    scrape_interval_s: float
    seed: int
    stretch: tuple[float, float] = (0.0, 1.0)
    """Shares of the trace's time between which arrivals are drawn."""
    prompt_factor: float = 1.0
    """On prompt lengths; not where prefixes are known, whose blocks lengths must fit."""
    output_factor: float = 1.0


def draw_runs(scenario: Scenario, count: int, rng: np.random.Generator) -> list[Run]:
    """Runs to learn from, at all loads; every third on the scenario's own replicas.

    The last share of them, `CALIBRATING`, plays the newest traffic as it is, the others stretches of any
    time with lengths scaled.
    """
    spacing = (MOST_LOAD - LEAST_LOAD) / count
    loads = LEAST_LOAD + spacing * (rng.permutation(count) + rng.random(count))
    runs = [_draw(scenario, float(load), rng) for load in loads]
    runs[::3] = [replace(run, replicas=scenario.replicas) for run in runs[::3]]
    varied = round((1.0 - CALIBRATING) * count)
    return [_vary(run, rng) for run in runs[:varied]] + [
        replace(run, stretch=(NEWEST, 1.0)) for run in runs[varied:]
    ]


def _vary(run: Run, rng: np.random.Generator) -> Run:
    width = float(rng.uniform(0.1, 0.4))
    first = float(rng.uniform(0.0, 1.0 - width))
    return replace(
        run,
        stretch=(first, first + width),
        prompt_factor=float(np.exp(rng.normal(0.0, LENGTH_SPREAD))),
        output_factor=float(np.exp(rng.normal(0.0, LENGTH_SPREAD))),
    )


def draw_measured_runs(scenario: Scenario, count: int, rng: np.random.Generator) -> list[Run]:
    """Runs to measure on: random mixes at `MEASURED_LOADS` in turn, with the trace as it is."""
    return [_draw(scenario, MEASURED_LOADS[i % len(MEASURED_LOADS)], rng) for i in range(count)]


def sample_runs(
    runs: Sequence[Run],
    scenario: Scenario,
    trace: Trace,
    decisions: int,
    length: LengthPredictor,
    *,
    factor: float | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> list[LatencySamples]:
    """Play runs in lockstep and collect what became of every counted decision.

    Args:
        trace: of which the runs' arrivals are drawn.
        decisions: counted in each run, about.
        factor: `closed_form_factor(scenario)`, where it is at hand.
        on_progress: called now and then with the share of all arrivals played.
    """
    factor = closed_form_factor(scenario) if factor is None else factor
    places = [_Place(run, scenario, trace, decisions, length, factor) for run in runs]
    batch = ClusterBatch([place.cluster for place in places])
    total = sum(len(place.rows) for place in places)
    played, told = 0, 0
    while (asked := np.flatnonzero((rows := batch.next_requests()) >= 0)).size:
        seen = batch.observe()
        choices = np.full(len(places), -1, dtype=np.int64)
        for i in asked.tolist():
            choices[i] = places[i].choose(seen.replicas[i], seen.mask[i])
        chosen = seen.replicas[np.arange(len(places)), choices][:, None]
        features = latency_rows(chosen, seen.request)[:, 0]
        for i in asked.tolist():
            places[i].rows[rows[i]] = features[i]
        batch.dispatch(choices, seen)
        played += len(asked)
        if on_progress is not None and (played - told) * 50 > total:
            told = played
            on_progress(played / total)
    return [place.samples() for place in places]


def join(parts: Sequence[LatencySamples]) -> LatencySamples:
    """All samples of several runs, and each part's times as those of a run of its own."""
    times = [part.times for part in parts if part.times is not None]
    return LatencySamples(
        np.concatenate([part.rows for part in parts]),
        np.concatenate([part.ttft_s for part in parts]),
        np.concatenate([part.tpot_s for part in parts]),
        np.concatenate([part.load for part in parts]),
        None if len(times) < len(parts) else _in_turn(times),
    )


def _in_turn(parts: Sequence[Times]) -> Times:
    return Times(
        np.repeat(np.arange(len(parts)), [len(part.run) for part in parts]),
        np.concatenate([part.decided_s for part in parts]),
        np.concatenate([part.ended_s for part in parts]),
    )


class _Place:
    """One run under way."""

    def __init__(
        self,
        run: Run,
        scenario: Scenario,
        trace: Trace,
        decisions: int,
        length: LengthPredictor,
        factor: float,
    ) -> None:
        part = stretch(trace, *run.stretch)
        traffic = scaled(part, run.prompt_factor, run.output_factor)
        rate_rps = run.load * factor * SaturationEstimate(traffic).of(run.replicas)
        self._run = run
        self._end_s = WARMUP_S + decisions / rate_rps
        arrivals = block_bootstrap(
            part, rate_rps=rate_rps, duration_s=self._end_s + TAIL_S, seed=run.seed
        )
        # The predictor knows the trace as it is; the run's answers are longer by a factor, and so are
        # the predictions, as those of a service that has seen such answers would be.
        predicted = np.maximum(output_quantiles(arrivals, length) * run.output_factor, 1.0)
        self.cluster = Cluster(
            run.replicas,
            scaled(arrivals, run.prompt_factor, run.output_factor),
            output_quantiles=predicted,
            staleness=replace(scenario.staleness, scrape_interval_s=run.scrape_interval_s),
            prefix_cache=scenario.prefix_cache,
            seed=run.seed,
        )
        self.rows = np.zeros((len(arrivals), len(LATENCY_FEATURES)), dtype=np.float32)
        self._rng = np.random.default_rng(run.seed)

    def choose(self, replicas: NDArray[np.float32], mask: NDArray[np.bool_]) -> int:
        """A replica at random, or the one of least marginal cost."""
        if self._rng.random() < self._run.random_share:
            return int(self._rng.choice(np.flatnonzero(mask)))
        return int(np.argmin(np.where(mask, replicas[:, _MARGINAL_COST], np.inf)))

    def samples(self) -> LatencySamples:
        """What ended well, of what is counted."""
        self.cluster.finish()
        outcomes = self.cluster.outcomes()
        counted = (outcomes.arrival_s >= WARMUP_S) & (outcomes.arrival_s < self._end_s)
        kept = np.flatnonzero(counted & outcomes.ok & (outcomes.ttft_s > 0))
        load = np.full(len(kept), self._run.load)
        arrival_s = outcomes.arrival_s[kept]
        times = Times(np.zeros(len(kept), dtype=np.int64), arrival_s, arrival_s + outcomes.e2e_s[kept])
        return LatencySamples(self.rows[kept], outcomes.ttft_s[kept], outcomes.tpot_s[kept], load, times)


def closed_form_factor(scenario: Scenario) -> float:
    """By how much the closed form misses the saturation that was measured on the scenario's traffic."""
    if scenario.saturation_rps is None:
        return 1.0
    estimate = SaturationEstimate(load_source(scenario))
    return scenario.saturation_rps / estimate.of(scenario.replicas)


def _draw(scenario: Scenario, load: float, rng: np.random.Generator) -> Run:
    return Run(
        replicas=draw_mix(scenario, rng),
        load=load,
        random_share=float(rng.choice(RANDOM_SHARES)),
        scrape_interval_s=scenario.staleness.scrape_interval_s * float(rng.uniform(0.5, 4.0)),
        seed=int(rng.integers(2**31)),
    )
