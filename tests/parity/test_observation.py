"""The router and the simulator see the same: fed with the same events, the same arrays come out.

A simulated cluster serves a trace. The router's own parts (fleet, router, flights) are told of every
dispatch, first token, end and scrape at the same times, and must make the same observation at every
decision, and serve the p90 that the evaluation's replay of the run says it would have served.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from steersman.agents.fit.as_served import as_served
from steersman.agents.policies import make_policy
from steersman.agents.policy import Policy
from steersman.env.cluster import Cluster
from steersman.env.engine_metrics import EngineMetrics
from steersman.env.outcomes import OutcomeTable
from steersman.env.profiles import load_profile
from steersman.predictors import ledger as L
from steersman.predictors.features import HISTORY_FEATURES, LENGTH_FEATURES, REQUEST_FEATURES
from steersman.predictors.latency import AnalyticLatency, LatencyPredictor
from steersman.predictors.length import LengthPredictor
from steersman.predictors.past import Past
from steersman.predictors.width import Widths
from steersman.serving.backend_settings import BackendSettings
from steersman.serving.config import HealthSettings
from steersman.serving.flight import Flight
from steersman.serving.headers import NO_HINTS
from steersman.serving.metrics import RouterMetrics
from steersman.serving.pool import Fleet
from steersman.serving.router import Router
from steersman.traces.readers import load_trace
from steersman.traces.scenario import ReplicaSpec, Staleness
from steersman.traces.trace import Trace

DATA = Path(__file__).resolve().parents[1] / "data"
PROFILES = ("a100-llama-3.1-8b", "h100-llama-3.1-8b", "l40s-llama-3.1-8b")
_HISTORY = [REQUEST_FEATURES.index(name) for name in HISTORY_FEATURES]
"""What the past says is the trace's business in the simulator: not compared."""


class Scripted:
    """Deciders whose length predictor says what the simulator was told."""

    version = ""

    def __init__(self, policy: Policy, quantiles: NDArray[np.float64]) -> None:
        self._policy = policy
        self._quantiles = quantiles
        self.row = 0
        self.latency: LatencyPredictor = AnalyticLatency()
        self._widths = Widths()

    @property
    def length(self) -> LengthPredictor:
        return self

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float64]:
        assert features.shape == (1, len(LENGTH_FEATURES))
        p50, p90 = self._quantiles[self.row]
        return np.array([[p50, p90, np.log(p50)]])

    def policy(self, model: str) -> Policy:
        return self._policy

    def widths(self, model: str) -> Widths:
        return self._widths


def simulate(trace: Trace, quantiles: NDArray[np.float64]) -> Cluster:
    return Cluster(
        [ReplicaSpec(name, load_profile(name)) for name in PROFILES],
        trace,
        output_quantiles=quantiles,
        staleness=Staleness(scrape_interval_s=0.5),
        seed=3,
    )


def outcomes_of(trace: Trace, quantiles: NDArray[np.float64]) -> OutcomeTable:
    cluster = simulate(trace, quantiles)
    policy = make_policy("marginal-cost", seed=0)
    while cluster.next_request() is not None:
        cluster.dispatch(policy.decide(cluster.observe()).choice)
    cluster.finish()
    return cluster.outcomes()


class Replay:
    """The router's parts, told what happens in the simulator."""

    def __init__(self, trace: Trace, quantiles: NDArray[np.float64], outcomes: OutcomeTable) -> None:
        self.now_s = 0.0
        self.outcomes = outcomes
        self.fleet = Fleet(
            [BackendSettings(url=f"http://{name}", models=("m",)) for name in PROFILES],
            [load_profile(name) for name in PROFILES],
            HealthSettings(),
            block_tokens=trace.block_tokens or 16,
        )
        self.deciders = Scripted(make_policy("marginal-cost", seed=0), quantiles)
        clock = lambda: self.now_s  # noqa: E731
        self.router = Router(self.fleet, self.deciders, Past(), RouterMetrics(), clock)
        self.flights: dict[int, Flight] = {}
        self.begun: set[int] = set()

    def advance(self, cluster: Cluster, until_s: float) -> None:
        """Tell of everything between the last decision and this one, in the order of time."""
        events: list[tuple[float, int, int]] = []
        for row in self.flights:
            first_s = self.outcomes.arrival_s[row] + self.outcomes.ttft_s[row]
            end_s = self.outcomes.arrival_s[row] + self.outcomes.e2e_s[row]
            if first_s <= until_s and row not in self.begun:
                events.append((first_s, 1, row))
            if end_s <= until_s:
                events.append((end_s, 2, row))
        for replica in range(len(PROFILES)):
            at_s = cluster.state[replica, L.SCRAPED_AT_S]
            if at_s != self.fleet.state[replica, L.SCRAPED_AT_S]:
                events.append((at_s, 0, replica))
        for at_s, kind, which in sorted(events):
            if kind == 0:
                seen = cluster.state[which]
                metrics = EngineMetrics(
                    "vllm",
                    seen[L.RUNNING],
                    seen[L.WAITING],
                    seen[L.KV_USAGE],
                    prefix_queries=seen[L.PREFIX_QUERIES],
                    prefix_hits=seen[L.PREFIX_HITS],
                )
                self.fleet.on_scrape(self.fleet.replicas[which], metrics, at_s)
            elif kind == 1:
                self.begun.add(which)
                self.flights[which].first_token(at_s)
            else:
                self.flights.pop(which).finish(at_s, int(self.outcomes.output_tokens[which]))


@pytest.mark.parametrize("source", ["azure2023_conv_excerpt.csv", "mooncake_conversation_excerpt.jsonl"])
async def test_router_and_simulator_make_the_same_observations(source: str) -> None:
    trace = load_trace(DATA / source, limit=150)
    rng = np.random.default_rng(5)
    p50 = rng.uniform(20.0, 400.0, len(trace))
    quantiles = np.stack([p50, 2.0 * p50], axis=1)
    outcomes = outcomes_of(trace, quantiles)
    cluster, replay = simulate(trace, quantiles), Replay(trace, quantiles, outcomes)
    policy = make_policy("marginal-cost", seed=0)
    compared = 0
    modelled, served = np.zeros((2, len(trace), 4))
    while (row := cluster.next_request()) is not None:
        replay.advance(cluster, cluster.now_s)
        replay.now_s, replay.deciders.row = cluster.now_s, row
        request = replace(trace.request(row), model="m", output_tokens=None, stream=True)
        prepared = replay.router.prepare(request, replay.fleet.pools["m"], NO_HINTS)
        route = replay.router.choose(prepared)
        assert route is not None
        theirs, ours = cluster.observe(), route.observation
        np.testing.assert_allclose(ours.replicas, theirs.replicas, rtol=2e-4, atol=1e-5)
        np.testing.assert_allclose(ours.pool, theirs.pool, rtol=2e-4, atol=1e-5)
        np.testing.assert_array_equal(ours.mask, theirs.mask)
        kept = np.delete(np.arange(len(REQUEST_FEATURES)), _HISTORY)
        np.testing.assert_allclose(ours.request[kept], theirs.request[kept], rtol=1e-6)
        choice = policy.decide(theirs).choice
        assert route.decision.choice == choice
        modelled[row], served[row] = route.modelled, route.predicted
        flight = replay.flights[row] = Flight(route, replay.fleet)
        flight.depart()
        cluster.dispatch(choice)
        compared += 1
    assert compared == len(trace)
    arrival_s, ended_s = outcomes.arrival_s, outcomes.arrival_s + outcomes.e2e_s
    replayed = as_served(modelled, arrival_s, outcomes.ttft_s, outcomes.tpot_s, ended_s)
    np.testing.assert_allclose(served, replayed, rtol=1e-9)
    assert (np.abs(served / modelled - 1.0)[:, [1, 3]].max(axis=0) > 0.05).all()
