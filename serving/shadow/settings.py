"""Settings of shadow mode."""

from __future__ import annotations

from pydantic import Field, field_validator

from steersman.traces.settings import Settings


class ShadowSettings(Settings):
    """Challengers that score live traffic without serving it (needs an outcome log)."""

    enabled: bool = Field(default=False, description="Whether any challenger looks on.")
    challengers: tuple[str, ...] = Field(
        default=("mlruns/served/challenger",),
        min_length=1,
        description="Directories of their bundles, which may come, change and go while the router runs.",
    )
    watch_interval_s: float = Field(
        default=2.0, ge=0.01, le=3600, description="Time between two looks at them, in seconds."
    )
    queue_requests: int = Field(
        default=512,
        ge=1,
        le=100_000,
        description="Requests that may wait to be scored; what comes beyond is dropped, and counted.",
    )
    most_cpu: float = Field(
        default=0.1,
        gt=0,
        le=1,
        description="Share of one core that scoring may take; what is beyond waits, and is dropped.",
    )
    segment_bytes: int = Field(
        default=16 * 2**20, ge=2**16, description="Size at which a file of the shadow log is closed."
    )
    total_bytes: int = Field(
        default=256 * 2**20, ge=2**17, description="Size of all its files; the oldest are deleted."
    )

    @field_validator("challengers")
    @classmethod
    def _check_challengers(cls, challengers: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(challengers)) < len(challengers) or "" in challengers:
            raise ValueError("a directory is empty or named twice; name each challenger's once")
        return challengers
