"""How far a replica that answers badly, slowly, or has only just come is trusted with requests."""

from __future__ import annotations

from pydantic import Field

from steersman.traces.settings import Settings


class BreakerSettings(Settings):
    """A replica of whose answers too many are failures gets no requests for a while (SPEC D2)."""

    error_rate: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Share of failures in the window above which the circuit opens; 1: never.",
    )
    window_s: float = Field(default=30.0, gt=0, le=3600, description="Length of the window, in seconds.")
    min_requests: int = Field(
        default=20, ge=1, description="Requests in the window below which its rate says nothing."
    )
    open_s: float = Field(
        default=10.0,
        gt=0,
        le=3600,
        description="Pause before the first probe, in seconds; then it doubles.",
    )
    max_open_s: float = Field(
        default=120.0, gt=0, le=86400, description="Longest pause between probes, in seconds."
    )
    probes: int = Field(
        default=3,
        ge=1,
        le=100,
        description="Requests let through at once after the pause; so many answers close it again.",
    )


class OutlierSettings(Settings):
    """A replica much slower to answer than its peers gets no requests for a while (SPEC B9)."""

    factor: float = Field(
        default=4.0,
        ge=0,
        description="Times its peers' delay, each measured against its own expectation; 0: never.",
    )
    least_ttft_s: float = Field(
        default=1.0,
        ge=0,
        description="A median time to first token below this is never too slow, in seconds.",
    )
    window_s: float = Field(
        default=30.0, gt=0, le=3600, description="Answers younger than this count, in seconds."
    )
    min_answers: int = Field(
        default=10, ge=1, le=64, description="Answers in the window below which nothing is said."
    )
    eject_s: float = Field(
        default=30.0, gt=0, le=3600, description="How long the first time, in seconds; then it doubles."
    )
    max_eject_s: float = Field(default=300.0, gt=0, le=86400, description="Longest time, in seconds.")
    max_ejected_share: float = Field(
        default=0.5,
        ge=0,
        le=1,
        description="Of a pool, at most this share is out by breaker and as outliers together.",
    )


class SlowStartSettings(Settings):
    """A replica that is new, or back, gets its share little by little (SPEC B6)."""

    duration_s: float = Field(
        default=20.0, ge=0, le=3600, description="Until it gets its full share, in seconds; 0: at once."
    )
    initial_share: float = Field(
        default=0.1,
        ge=0,
        le=1,
        description="Of its peers' requests in flight, per slot of its batch, at the beginning.",
    )
