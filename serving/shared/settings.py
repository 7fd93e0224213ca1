"""Where routers share what they know."""

from __future__ import annotations

from urllib.parse import urlsplit

from pydantic import Field, field_validator

from steersman.traces.settings import Settings


class SharedSettings(Settings):
    """A Valkey or Redis server for what several routers know together."""

    url: str = Field(
        default="",
        description="For example redis://10.0.0.9:6379/0, or rediss:// for TLS; '': each for itself.",
    )
    username: str = Field(default="", description="Its user; '' for the default one.")
    password_env: str = Field(
        default="", description="Environment variable with its password; '' for none."
    )
    prefix: str = Field(
        default="steersman",
        pattern=r"^[A-Za-z0-9._-]{1,64}$",
        description="Begins the names of all that is stored there.",
    )
    timeout_s: float = Field(
        default=0.05, gt=0, le=5, description="For one answer; then the router goes on by itself."
    )
    retry_s: float = Field(
        default=1.0, gt=0, le=300, description="After a failure it is left alone so long, in seconds."
    )

    @field_validator("url")
    @classmethod
    def _check_url(cls, url: str) -> str:
        if not url:
            return url
        parts = urlsplit(url)
        if parts.scheme not in {"redis", "rediss", "unix"} or not (parts.hostname or parts.path):
            raise ValueError("not a redis:// or rediss:// URL; write it like redis://host:6379/0")
        if parts.username or parts.password:
            raise ValueError("has credentials in it; name them with username and password_env instead")
        return url
