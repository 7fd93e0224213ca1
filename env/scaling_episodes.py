"""Where the episodes of the scaling environment come from."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from steersman.env.cluster import Cluster
from steersman.env.saturation import SaturationEstimate
from steersman.env.scenario import Split, load_source
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import ReplicaSpec, Scenario

LEAST_REQUESTS_S = 1.0
"""Shortest episode."""


class SwingSampler:
    """Episodes of a scenario whose arrival rate swings: up and down between knots, drawn anew each time.

    The scenario's replicas are repeated up to `replicas`; the first `serving` of them serve from the
    start, the others are on standby. The rate is a share of what all of them together can complete.

    Args:
        scenario: of which replicas, trace, staleness and the clients' patience are taken.
        replicas: that there can be at most.
        serving: that serve at first.
        duration_s: of the arrivals.
        load: range of the rate at the knots, as a share of the saturation of all replicas.
        knots: at which the rate is drawn, evenly spread over the episode; it is linear between them.
        cold_start_s: overrides the scenario's.
        split: part of the trace that is used.

    Raises:
        ConfigError: a number that makes no sense.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        replicas: int = 8,
        serving: int = 3,
        duration_s: float = 900.0,
        load: tuple[float, float] = (0.1, 0.8),
        knots: int = 7,
        cold_start_s: float | None = None,
        split: Split = "train",
    ) -> None:
        if not 1 <= serving <= replicas:
            raise ConfigError(f"serving = {serving} must be between 1 and replicas = {replicas}")
        if not (0.0 < load[0] <= load[1] < np.inf and knots >= 2 and duration_s >= LEAST_REQUESTS_S):
            raise ConfigError(
                f"load = {load} must be a positive range, knots = {knots} at least 2 and "
                f"duration_s = {duration_s} at least {LEAST_REQUESTS_S:g}"
            )
        self._scenario = scenario
        self._source = load_source(scenario, split)
        self._replicas = tuple(
            _spec(scenario.replicas[number % len(scenario.replicas)], number, serving, cold_start_s)
            for number in range(replicas)
        )
        self._capacity_rps = SaturationEstimate(self._source).of(self._replicas)
        self._duration_s = duration_s
        self._load = load
        self._knots = knots

    @property
    def most_replicas(self) -> int:
        """Of any episode."""
        return len(self._replicas)

    def draw(self, rng: np.random.Generator) -> Cluster:
        """A new cluster."""
        rates = rng.uniform(*self._load, self._knots) * self._capacity_rps
        seed = int(rng.integers(2**31))
        mean_rps = float((rates[:-1] + rates[1:]).mean() / 2.0)
        trace = block_bootstrap(self._source, rate_rps=mean_rps, duration_s=self._duration_s, seed=seed)
        arrival_s = swing(trace.arrival_s, rates, self._duration_s)
        return Cluster(
            self._replicas,
            trace.replace(arrival_s=arrival_s),
            staleness=self._scenario.staleness,
            prefix_cache=self._scenario.prefix_cache,
            seed=seed,
            # Events and shared GPUs name replicas of the scenario, of which there are others here.
            conditions=replace(self._scenario.conditions, changes=(), sharing=()),
        )


def swing(
    arrival_s: NDArray[np.float64], rates: NDArray[np.float64], duration_s: float
) -> NDArray[np.float64]:
    """Bend time so that arrivals of an even rate follow the given ones, linear between even knots.

    With R(t) the integral of the rate, an arrival at share u of the duration moves to where R is u times
    its end. The order stays.
    """
    times = np.linspace(0.0, duration_s, 1001)
    rate = np.interp(times, np.linspace(0.0, duration_s, len(rates)), rates)
    total = np.concatenate([[0.0], np.cumsum((rate[1:] + rate[:-1]) / 2.0)])
    share = np.clip(arrival_s / duration_s, 0.0, 1.0)
    bent: NDArray[np.float64] = np.interp(share * total[-1], total, times)
    return bent


def _spec(spec: ReplicaSpec, number: int, serving: int, cold_start_s: float | None) -> ReplicaSpec:
    return replace(
        spec,
        replica_id=f"{spec.profile.gpu}-{number}",
        standby=number >= serving,
        cold_start_s=spec.cold_start_s if cold_start_s is None else cold_start_s,
    )
