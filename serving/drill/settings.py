"""How long a rehearsal is, and what happens in it."""

from __future__ import annotations

from pydantic import Field

from steersman.agents.learned.config import PolicySettings
from steersman.agents.retrain.settings import ComparisonSettings, RetrainSettings, SoundnessSettings
from steersman.traces.settings import Settings


def _retraining() -> RetrainSettings:
    return RetrainSettings(
        practise=(),
        soundness=SoundnessSettings(least_requests=500, least_span_s=30.0),
        policy=PolicySettings.model_validate(
            {
                "budget_s": 180.0,
                "ppo_share": 0.0,
                "practice": {"replicas": [2, 8], "load": [0.5, 1.3], "scenario_share": 0.7},
                "check": {"loads": [0.7, 0.95], "seeds": 4},
            }
        ),
        comparison=ComparisonSettings(streams=10, requests=1000, scenarios=()),
    )


class RehearsalSettings(Settings):
    """Requests are those of an act; what a figure needs is in docs/rehearsal.md."""

    scenario: str = Field("demo", description="cluster that is emulated, and its traffic")
    load: float = Field(
        0.48, gt=0, le=1.5, description="arrival rate over saturation, before the change"
    )
    slowdowns: tuple[float, ...] = Field(
        (2.5, 1.6, 1.0, 1.0), description="by replica: how many times as long it takes after the change"
    )
    before: int = Field(500, ge=20, description="requests before the change")
    judged: int = Field(1200, ge=100, description="requests after the change, served by both models")
    shadow: int = Field(600, ge=20, description="requests that a challenger looks on at")
    chunk: int = Field(100, ge=10, description="requests between two looks at a canary")
    most: int = Field(3000, ge=50, description="requests of a canary, at most")
    shares: tuple[float, ...] = Field((0.05, 0.2, 0.5, 1.0), description="stages of the canary")
    hold_s: float = Field(10.0, gt=0, description="least time of a stage")
    least_requests: int = Field(60, ge=20, description="the challenger's outcomes in a stage, at least")
    priced: int = Field(400, ge=20, description="requests with and without outcome log, for its cost")
    stream_interval: int = Field(8, ge=1, description="tokens an emulated backend sends at a time")
    seed: int = Field(0, ge=0, description="of everything random")
    streams: int = Field(10, ge=2, description="streams of the replay in a shadow report")
    least_decisions: int = Field(300, ge=1, description="decisions that a shadow report's verdict needs")
    retrain: RetrainSettings = Field(
        default_factory=_retraining, description="how challengers are made (docs/retrain.md)"
    )


def quick() -> RehearsalSettings:
    """The whole story in little more than a minute; its figures claim nothing."""
    return RehearsalSettings(
        before=30,
        judged=110,
        shadow=20,
        chunk=30,
        most=90,
        shares=(0.5, 1.0),
        hold_s=1.0,
        least_requests=20,
        priced=20,
        stream_interval=32,
        streams=5,
        least_decisions=20,
        load=0.8,
        retrain=RetrainSettings(
            practise=(),
            soundness=SoundnessSettings(least_requests=100, least_span_s=5.0),
            policy=PolicySettings.model_validate(
                {
                    "budget_s": 2.0,
                    "ppo_share": 0.0,
                    "network": {"width": 8},
                    "practice": {"replicas": [2, 4], "episode_requests": 40, "episode_s": 0.0},
                    "counterfactual": {"clusters": 4, "states": 10, "rounds": 1, "check_rounds": 1},
                    "check": {"loads": [0.8], "seeds": 2, "requests": 60, "run_s": 0.0},
                }
            ),
            comparison=ComparisonSettings(streams=5, requests=60, scenarios=()),
        ),
    )
