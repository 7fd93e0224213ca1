"""Where operators ask."""

from __future__ import annotations

from pydantic import Field

from steersman.traces.settings import Settings


class AdminSettings(Settings):
    """A listener of its own for operators and Prometheus."""

    host: str = Field(default="127.0.0.1", description="Address to listen on.")
    port: int | None = Field(
        default=None,
        ge=0,
        le=65535,
        description="Port of its own, 0 for any free one. Metrics and the names of replicas are then no "
        "longer on the public one; none: they are, and nothing can be changed while it runs.",
    )
    token_env: str = Field(
        default="", description="Environment variable with the bearer token to ask for; '' for none."
    )
