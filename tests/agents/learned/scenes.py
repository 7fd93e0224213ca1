"""A small scenario to practise on, in seconds."""

from __future__ import annotations

from functools import cache

from steersman.agents.learned.config import PolicySettings, PracticeSettings
from steersman.agents.learned.ground import Ground, grounds_of
from steersman.agents.learned.practice import Practice
from steersman.env.scenario import load_scenario, load_source
from steersman.predictors.length import FallbackLength
from steersman.traces.scenario import Scenario
from steersman.traces.trace import Trace

SMALL = PracticeSettings(
    replicas=(2, 4), episode_requests=40, episode_s=0.0, reuse_episode_s=0.0, load=(0.5, 1.2)
)


@cache
def scenario() -> Scenario:
    return load_scenario("tiny")


@cache
def source() -> Trace:
    return load_source(scenario(), "train")


@cache
def ground() -> Ground:
    return grounds_of([scenario()])[0]


def make_practice(settings: PracticeSettings = SMALL) -> Practice:
    return Practice([ground()], FallbackLength(), settings)


def small_settings(**changes: object) -> PolicySettings:
    """Everything as small as it can be."""
    return PolicySettings.model_validate(
        {
            "practice": SMALL.model_dump(),
            "network": {"width": 8},
            "evolution": {
                "start": "marginal-cost",
                "population": 4,
                "clusters": 1,
                "warmup_s": (1.0, 2.0),
                "practice": SMALL.model_dump(),
            },
            "evolution_share": 0.0,
            "counterfactual": {
                "clusters": 3,
                "states": 8,
                "epochs": 1,
                "last_epochs": 1,
                "check_rounds": 1,
                "minibatch": 32,
            },
            "ppo": {
                "environments": 4,
                "steps": 8,
                "minibatch": 16,
                "check_updates": 2,
                "critic_warmup": 1,
            },
            "check": {"loads": [0.8], "seeds": 2, "requests": 40, "run_s": 0.0, "reuse_run_s": 0.0},
            "budget_s": 1.0,
            **changes,
        }
    )
