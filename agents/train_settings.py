"""What is trained, and the settings: one file of `configs/training/`. Loads nothing heavy."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

from pydantic import Field

from steersman.agents.learned.config import PolicySettings
from steersman.traces.settings import Settings, load_named_settings


class What(StrEnum):
    """What is trained."""

    ALL = "all"
    PREDICTORS = "predictors"
    POLICY = "policy"


class LatencySettings(Settings):
    """Simulated runs that the latency model learns from."""

    runs: int = Field(36, ge=3, description="runs, each on its own mix of hardware and load")
    decisions: int = Field(1000, ge=100, description="counted requests per run")


class EvaluationSettings(Settings):
    """The evaluation that is recorded with a training, on the tuning part of the trace."""

    loads: tuple[float, ...] = Field(
        (0.8, 0.95), min_length=1, description="arrival rates over saturation"
    )
    seeds: int = Field(5, ge=1, description="paired runs per load")
    requests: int = Field(2000, ge=20, description="counted arrivals per run")
    warmup_s: float = Field(60.0, ge=0, description="seconds before them, not counted")
    baselines: tuple[str, ...] = Field(
        ("marginal-cost", "p2c"), min_length=1, description="policies the learned one is compared with"
    )


class TrainSettings(Settings):
    """One file of `configs/training/`."""

    scenario: str = Field(
        "demo", description="name in configs/clusters, or path, of the cluster to train for"
    )
    also: tuple[str, ...] = Field(
        (), description="further scenarios that the policy is trained for, one policy for all"
    )
    trace: str | None = Field(None, description="bundled name or path; null: the scenario's own trace")
    seed: int = Field(0, ge=0, description="of everything random")
    jobs: int = Field(
        1, ge=1, description="processes that practise and check; the policy is the same with any number"
    )
    latency: LatencySettings = Field(default_factory=LatencySettings, description="the latency model")
    policy: PolicySettings = Field(default_factory=PolicySettings, description="the routing policy")
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings, description="the closing comparison"
    )


def load_train_settings(path_or_name: str | Path) -> TrainSettings:
    """Settings from `configs/training` by name (`default`, `demo`), or from the path of a YAML file.

    Raises:
        ConfigError: no such file, or a key of it is wrong.
    """
    return load_named_settings("training", path_or_name, TrainSettings)
