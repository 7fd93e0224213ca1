"""How a pool is operated, as keys of a scenario file: events, patience, adapters and shared GPUs."""

from __future__ import annotations

import difflib
from functools import cache
from typing import Literal

from pydantic import Field

from steersman.traces.errors import ConfigError
from steersman.traces.scenario import (
    Adapters,
    ChangeKind,
    Conditions,
    Disaggregation,
    ReplicaChange,
    SharedGpu,
)
from steersman.traces.settings import CONFIG_ROOT, Settings, parse_settings, read_yaml


class ColdStartSettings(Settings):
    """One entry of `configs/cold_starts.yaml`."""

    seconds: float = Field(ge=0, description="From start to serving.")
    source: str = Field(default="", description="Where the number comes from.")


class EventSettings(Settings):
    """Something that happens to a replica."""

    at_s: float = Field(ge=0, description="Seconds from the start of the simulation.")
    replica: int = Field(ge=0, description="Its number in the pool, from 0.")
    kind: ChangeKind = Field(description="What happens: fail, recover, drain, start or slow.")
    factor: float = Field(default=1.0, gt=0, description="Of slow: on iteration times; 1 is normal.")


class AdapterSettings(Settings):
    """What LoRA adapters cost."""

    most: int = Field(default=4, ge=1, le=1024, description="Loaded on a replica at once.")
    load_s: float = Field(
        default=0.1, ge=0, description="An iteration that loads one is so much longer."
    )


class SharingSettings(Settings):
    """Replicas on one GPU. See `env/sharing.py` for the formulas."""

    replicas: list[int] = Field(min_length=2, description="Their numbers in the pool, from 0.")
    mode: Literal["time-slice", "mps"] = Field(
        default="time-slice", description="In turn, or side by side."
    )
    slice_ms: float = Field(default=20.0, ge=10, le=50, description="Turn: 10 latency, 50 throughput.")
    weights: list[float] = Field(default=[], description="Turns over slice_ms; none: equal.")
    preemptive: bool = Field(default=True, description="Whether a turn may end within an iteration.")
    overhead: float = Field(default=0.04, ge=0.03, le=0.05, description="Of MPS, on every iteration.")
    demands: list[float] = Field(default=[], description="Of MPS: share of the GPU each can use.")
    memory_reserve: float = Field(
        default=0.05, ge=0.05, le=0.08, description="Share of the GPU's memory that stays free."
    )


class DisaggregationSettings(Settings):
    """Prefill and decode on different replicas. See `env/disaggregation.py`."""

    prefill: list[int] = Field(min_length=1, description="Replicas that only prefill, from 0.")
    decode: list[int] = Field(min_length=1, description="Replicas that only decode.")
    bandwidth_gb_s: float = Field(default=25.0, gt=0, description="Of KV transfers, gigabytes a second.")
    latency_s: float = Field(default=0.001, ge=0, description="Of KV transfers, before the first byte.")


def conditions(
    *,
    events: list[EventSettings],
    patience_s: float | None,
    priority_preemption: bool,
    priority_scheduling: bool,
    adapters: AdapterSettings | None,
    sharing: list[SharingSettings],
    disaggregation: DisaggregationSettings | None,
) -> Conditions:
    """What a scenario file says, in the words of the cluster model."""
    changes = sorted((ReplicaChange(**event.model_dump()) for event in events), key=lambda c: c.at_s)
    return Conditions(
        changes=tuple(changes),
        patience_s=patience_s,
        priority_preemption=priority_preemption,
        priority_scheduling=priority_scheduling,
        adapters=None if adapters is None else Adapters(**adapters.model_dump()),
        sharing=tuple(
            SharedGpu(
                **gpu.model_dump(exclude={"replicas", "weights", "demands"}),
                replicas=tuple(gpu.replicas),
                weights=tuple(gpu.weights),
                demands=tuple(gpu.demands),
            )
            for gpu in sharing
        ),
        disaggregation=None if disaggregation is None else _split(disaggregation),
    )


def _split(settings: DisaggregationSettings) -> Disaggregation:
    return Disaggregation(
        prefill=tuple(settings.prefill),
        decode=tuple(settings.decode),
        bandwidth_gb_s=settings.bandwidth_gb_s,
        latency_s=settings.latency_s,
    )


def cold_start_s(name_or_seconds: str | float) -> float:
    """Seconds as they are, or those of an entry of `configs/cold_starts.yaml`.

    Raises:
        ConfigError: no such entry.
    """
    if not isinstance(name_or_seconds, str):
        return float(name_or_seconds)
    known = _cold_starts()
    if name_or_seconds not in known:
        close = difflib.get_close_matches(name_or_seconds, known, n=1)
        hint = f"did you mean '{close[0]}'?" if close else f"known: {', '.join(known)}"
        raise ConfigError(f"unknown cold_start '{name_or_seconds}'; {hint}, or give seconds")
    return known[name_or_seconds]


@cache
def _cold_starts() -> dict[str, float]:
    path = CONFIG_ROOT / "cold_starts.yaml"
    return {
        name: parse_settings(entry, ColdStartSettings, source=f"{path}: {name}").seconds
        for name, entry in read_yaml(path).items()
    }
