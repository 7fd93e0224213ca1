"""How one emulated backend behaves."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steersman.traces.settings import Settings


class Faults(Settings):
    """What to break on purpose. Everything off is a healthy backend.

    `POST /emulator/faults` replaces all of them at once, so `{}` heals.
    """

    fail_rate: float = Field(default=0.0, ge=0, le=1, description="Share of new requests answered 500.")
    freeze_s: float = Field(
        default=0.0,
        ge=0,
        description="Answer nothing, health checks included, and compute nothing for so many seconds "
        "from the moment this is set; then go on as if nothing had been.",
    )
    slowdown: float = Field(
        default=1.0, gt=0, description="Factor on the time of everything the engine does."
    )
    break_after_tokens: int = Field(
        default=0,
        ge=0,
        description="Cut the connection of every answer after so many tokens; 0 does not.",
    )
    rubbish_rate: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of new requests answered 200 with what is no answer: a page of HTML, half an "
        "object, lines of a log.",
    )
    metrics: Literal["honest", "idle", "rubbish"] = Field(
        default="honest",
        description="What its metrics page says: that it idles, whatever it does, or nothing readable.",
    )
    unhealthy: bool = Field(
        default=False, description="Answer health checks with 503, requests as ever."
    )


class Lengths(Settings):
    """How long an answer gets when nobody says: log-normal, as chat outputs roughly are."""

    median_tokens: float = Field(default=180.0, ge=1, description="Half of the answers are shorter.")
    sigma: float = Field(default=0.9, ge=0, description="Standard deviation of the length's logarithm.")


class EmulatorSettings(Settings):
    """One emulated replica."""

    profile: str = Field(description="Hardware profile: a name under configs/hardware, or a YAML file.")
    model: str = Field(default="", description="Model name it serves; empty: the profile's.")
    replica_id: str = Field(default="", description="Shown on its pages; empty: the profile's name.")
    seed: int = Field(default=0, ge=0, description="Of drawn answer lengths and failures.")
    speed: float = Field(
        default=1.0, gt=0, description="Engine seconds per wall second: 10 plays ten times faster."
    )
    slowdown: float = Field(default=1.0, gt=0, description="A straggler's factor on every iteration.")
    max_num_seqs: int | None = Field(
        default=None, ge=1, description="Sequences that may run at once; none: the profile's."
    )
    max_batched_tokens: int | None = Field(
        default=None, ge=1, description="Token budget of an iteration; none: the profile's."
    )
    prefix_cache: bool = Field(default=True, description="Whether the engine reuses prompt prefixes.")
    stream_interval: int = Field(
        default=1,
        ge=1,
        description="Tokens sent at a time, after the first and up to the last, as vLLM's option of "
        "that name does; more cost less CPU on every hop.",
    )
    lengths: Lengths = Field(default=Lengths(), description="Answer lengths where nobody says.")
    faults: Faults = Field(default=Faults(), description="What is broken from the start.")
