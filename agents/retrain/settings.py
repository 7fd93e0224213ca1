"""Settings of a retraining: `configs/retraining/default.yaml` by default. Loads nothing heavy."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from steersman.agents.learned.config import PolicySettings
from steersman.traces.settings import Settings, load_named_settings


class SoundnessSettings(Settings):
    """When a log is fit to learn from (`soundness.py`)."""

    least_requests: int = Field(
        2000, ge=100, description="sound requests that ended well, at least; fewer teach nothing"
    )
    least_span_s: float = Field(
        300.0, ge=1, description="from the first to the last of them, in seconds, at least"
    )
    most_faulty: float = Field(
        0.01, ge=0, le=1, description="share of records with absurd values that are merely left out"
    )
    most_duplicated: float = Field(
        0.05, ge=0, le=1, description="share of records whose request id was there before"
    )
    most_failed: float = Field(0.5, gt=0, le=1, description="share of served requests that failed")
    most_tenant_share: float = Field(
        0.95, gt=0, le=1, description="of all requests, where there are several tenants; 1: any"
    )
    most_jump_s: float = Field(
        5.0, gt=0, description="seconds by which the wall clock may jump against the steady clock"
    )


class ComparisonSettings(Settings):
    """How champion and challenger meet."""

    streams: int = Field(
        10, ge=2, description="resampled streams of the held-out log that both play; claims need 5"
    )
    requests: int = Field(3000, ge=20, description="requests of such a stream, at most")
    scenarios: tuple[str, ...] = Field(
        ("mixed", "prefix"),
        description="scenarios on which both meet too; there the challenger may not be clearly worse",
    )
    loads: tuple[float, ...] = Field(
        (0.8, 0.95), min_length=1, description="arrival rates over saturation on the scenarios"
    )
    seeds: int = Field(5, ge=2, description="paired runs per scenario and load")
    scenario_requests: int = Field(2000, ge=20, description="counted arrivals of such a run")
    warmup_s: float = Field(60.0, ge=0, description="seconds before them, not counted")
    scenario_margin: float = Field(
        0.05, ge=0, description="by how much J may be worse on the scenarios: they are not this cluster"
    )


class RetrainSettings(Settings):
    """One retraining."""

    window: int = Field(30_000, ge=200, description="newest records of the log that are read, at most")
    held_share: float = Field(
        0.25, gt=0, lt=0.6, description="last share of the time, on which champion and challenger meet"
    )
    seed: int = Field(0, ge=0, description="of everything random")
    jobs: int = Field(1, ge=1, description="processes that practise and compare")
    practise: tuple[str, ...] = Field(
        ("mixed", "prefix"), description="scenarios that the policy is trained for besides the log"
    )
    soundness: SoundnessSettings = Field(
        default_factory=SoundnessSettings, description="when a log is fit to learn from"
    )
    policy: PolicySettings = Field(
        default_factory=PolicySettings, description="training of the routing policy (docs/training.md)"
    )
    comparison: ComparisonSettings = Field(
        default_factory=ComparisonSettings, description="how champion and challenger meet"
    )


def load_retrain_settings(path_or_name: str | Path) -> RetrainSettings:
    """Settings from `configs/retraining` by name (`default`), or from the path of a YAML file.

    Raises:
        ConfigError: no such file, or a key of it is wrong.
    """
    return load_named_settings("retraining", path_or_name, RetrainSettings)
