"""What is configured of access: where the keys are, and what is said of each."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Self

from pydantic import AfterValidator, AwareDatetime, Field, SecretStr, field_validator, model_validator

from steersman.serving.access.secrets import KEY_ID, parse_hash
from steersman.traces.settings import Settings


def _check_hash(text: SecretStr) -> SecretStr:
    parse_hash(text.get_secret_value())
    return text


class RateSettings(Settings):
    """Limits of one key, or of all of a tenant's keys together."""

    requests_per_minute: float | None = Field(
        default=None, gt=0, le=1e9, description="Requests; none: no limit."
    )
    tokens_per_minute: float | None = Field(
        default=None, gt=0, le=1e12, description="Prompt and output tokens; none: no limit."
    )
    concurrent: int | None = Field(
        default=None, ge=1, le=1_000_000, description="Requests at the same time; none: no limit."
    )


class KeySettings(Settings):
    """One key, as `steersman keys new` prints it."""

    id: str = Field(description="The part of the key between sk-steersman- and the secret.")
    hash: Annotated[SecretStr, AfterValidator(_check_hash)] = Field(
        description="Salted hash of the key; the key itself is nowhere."
    )
    name: str = Field(default="", max_length=200, description="For people: whose key it is.")
    tenant: str = Field(
        default="",
        pattern=r"^[!-~]{0,256}$",
        description="Its requests are this tenant's; '' lets the tenant header say whose they are.",
    )
    models: tuple[str, ...] = Field(
        default=(), description="Models it may ask for, or aliases; * matches any part; empty: all."
    )
    top_priority: int = Field(
        default=0, ge=0, le=3, description="The most urgent class it may ask for, 0 to 3."
    )
    limits: RateSettings | None = Field(
        default=None, description="Its own limits; none: the file's `defaults`."
    )
    expires: AwareDatetime | None = Field(
        default=None, description="From when on it is refused, with a time zone; none: never."
    )
    disabled: bool = Field(default=False, description="Refuse it.")

    @field_validator("id")
    @classmethod
    def _check_id(cls, key_id: str) -> str:
        if not KEY_ID.fullmatch(key_id):
            raise ValueError("use the 12 letters and digits that 'steersman keys new' prints")
        return key_id

    def has_expired(self, unix_s: float) -> bool:
        """Whether it is too late for it."""
        return self.expires is not None and datetime.fromtimestamp(unix_s, UTC) >= self.expires


class KeyFile(Settings):
    """The file that `access.key_file` names; read again whenever it changes."""

    keys: tuple[KeySettings, ...] = Field(description="The keys; [] lets nobody in.")
    tenants: dict[str, RateSettings] = Field(
        default_factory=dict, description="Limits of tenants, over all of their keys."
    )
    defaults: RateSettings = Field(
        default=RateSettings(), description="Limits of each key that has none of its own."
    )

    @model_validator(mode="after")
    def _check_ids(self) -> Self:
        seen: set[str] = set()
        for key in self.keys:
            if key.id in seen:
                raise ValueError(f"two keys have the id '{key.id}'; remove one")
            seen.add(key.id)
        return self


class AccessSettings(Settings):
    """Who is let in."""

    key_file: str = Field(
        default="", description="YAML file of hashed API keys; '' lets everybody in, without a key."
    )
    interval_s: float = Field(
        default=1.0, ge=0.05, le=3600, description="Time between two looks at it, in seconds."
    )
