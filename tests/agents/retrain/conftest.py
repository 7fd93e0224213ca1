"""A log of a simulated service, and settings that are as small as they can be."""

from __future__ import annotations

import pytest

from steersman.agents.retrain.settings import ComparisonSettings, RetrainSettings, SoundnessSettings
from steersman.env.scenario import load_scenario
from steersman.traces.outcome_record import OutcomeRecord
from tests.agents.learned.scenes import small_settings
from tests.support.simulated_log import demo_trace, simulated_log

SMALL = RetrainSettings(
    practise=(),
    policy=small_settings(budget_s=1.0, ppo_share=0.0),
    soundness=SoundnessSettings(least_requests=900, least_span_s=10.0),
    comparison=ComparisonSettings(
        streams=5,
        requests=120,
        scenarios=("tiny",),
        loads=(0.8,),
        seeds=2,
        scenario_requests=40,
        warmup_s=1.0,
    ),
)


@pytest.fixture(scope="session")
def logged() -> list[OutcomeRecord]:
    return simulated_log(demo_trace(1_000), load_scenario("demo").replicas)
