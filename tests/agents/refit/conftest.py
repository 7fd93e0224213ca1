"""Logged outcomes of a simulated service, without drift."""

from __future__ import annotations

import pytest

from steersman.agents.refit.outcomes import Taught
from steersman.agents.refit.rehearsal import DriftCourse, Learning, Player
from steersman.env.saturation import SaturationEstimate
from steersman.env.scenario import load_scenario
from steersman.predictors.latency import AnalyticLatency
from steersman.predictors.length import FallbackLength
from steersman.traces.arrivals import block_bootstrap
from steersman.traces.readers import load_trace

REQUESTS = 2_000


@pytest.fixture(scope="session")
def lessons() -> list[Taught]:
    """What a router of the demo cluster would have logged."""
    scenario, source = load_scenario("demo"), load_trace("azure-chat")
    rate_rps = 0.7 * SaturationEstimate(source, scenario).of(scenario.replicas)
    trace = block_bootstrap(source, rate_rps=rate_rps, duration_s=REQUESTS / rate_rps, seed=1)
    never = 2 * trace.duration_s + 1.0
    course = DriftCourse(scenario, trace, never, never)
    player = Player(course, Learning.REFITTED, AnalyticLatency(), FallbackLength(), min_outcomes=10**9)
    player.play()
    return player.ended
