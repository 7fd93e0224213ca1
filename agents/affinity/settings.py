"""What makes a group, and what ends its stay."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field, field_validator

from steersman.traces.settings import Settings


class GroupKey(StrEnum):
    """What requests of one group have in common."""

    SESSION = "session"
    """The session id."""
    USER = "user"
    """The `user` field of the body."""
    PREFIX = "prefix"
    """The first blocks of the prompt."""
    TENANT = "tenant"
    """The tenant."""


class AffinitySettings(Settings):
    """Sending the requests of a group to the replica that had the last one."""

    keys: tuple[GroupKey, ...] = Field(
        default=(),
        description="What makes a group, the first that a request has: session, user, prefix, tenant; "
        "empty: no affinity.",
    )
    timeout_s: float = Field(
        default=300.0, gt=0, le=86_400, description="A group that is silent for so long has no home."
    )
    slower_s: float = Field(
        default=0.5,
        ge=0,
        le=60,
        description="The home is overloaded when the first token there is expected so much later than "
        "at the best other, in seconds; it moves then.",
    )
    most_kv_usage: float = Field(
        default=0.95, gt=0, le=1, description="It is overloaded, too, above this share of its KV memory."
    )
    most_share: float = Field(
        default=0.5,
        gt=0,
        description="A group that sends more than this share of a replica's fair part has no home.",
    )
    window_s: float = Field(
        default=60.0, gt=0, le=3600, description="Over which time that share is taken, about."
    )
    prefix_blocks: int = Field(
        default=4, ge=1, le=1024, description="Blocks (of 64 tokens) that make a group by prefix."
    )
    most_groups: int = Field(
        default=100_000,
        ge=1,
        le=10_000_000,
        description="Groups remembered; the longest silent go first.",
    )

    @field_validator("keys")
    @classmethod
    def _check_keys(cls, keys: tuple[GroupKey, ...]) -> tuple[GroupKey, ...]:
        if len(set(keys)) < len(keys):
            raise ValueError("names a key twice; name each once")
        return keys
