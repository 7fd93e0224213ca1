"""Who decides."""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from pydantic import Field

from steersman.traces.settings import Settings


class Compiled(StrEnum):
    """Whether machine code calculates the features of decisions."""

    AUTO = "auto"
    NEVER = "never"


class PolicySettings(Settings):
    """Who decides."""

    name: str = Field(
        default="learned",
        description="A policy's name; 'learned' for the bundle's, guarded, with the guard's fallbacks.",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="The policy's own constants; 'learned' knows 'shipped'.",
    )
    exploration: float | None = Field(
        default=None,
        ge=0,
        le=0.1,
        description="Share of decisions drawn evenly from replicas not far slower than the best, so "
        "that the log can judge other policies; none: 0.01 of 'learned', else 0.",
    )
    compiled: Compiled = Field(
        default=Compiled.AUTO,
        description="Whether machine code calculates what a decision looks at, in a tenth of the time: "
        "'auto' where numba is installed (the extra 'fast'), 'never'. Takes a restart.",
    )
    seed: int = Field(default=0, ge=0, description="Of the policies' random draws.")

    @property
    def explored(self) -> float:
        """`exploration`, its default resolved."""
        if self.exploration is not None:
            return self.exploration
        return 0.01 if self.name == "learned" else 0.0


class LearnedOptions(Settings):
    """`policy.options` of `learned`."""

    shipped: bool = Field(
        default=True,
        description="Whether the policy that ships with Steersman decides while the bundle has none.",
    )
