"""How a challenger is tried."""

from __future__ import annotations

from enum import StrEnum
from itertools import pairwise
from typing import Self

from pydantic import Field, model_validator

from steersman.agents.guard import GuardSettings
from steersman.serving.policy_settings import PolicySettings
from steersman.traces.settings import Settings


class Start(StrEnum):
    """When a canary begins."""

    AUTO = "auto"
    """When there is a challenger that has not been tried."""
    MANUAL = "manual"
    """When it is asked for."""


class Split(StrEnum):
    """What is given to one of the arms as a whole."""

    SESSION = "session"
    """Requests of one session of one tenant; those without a session each for themselves."""
    TENANT = "tenant"
    REQUEST = "request"
    SWITCHBACK = "switchback"
    """All traffic of a stretch of time."""


class ChallengerSettings(Settings):
    """What is to be tried: other models, another policy, or both."""

    bundle: str = Field(
        default="",
        description="Directory of its bundle, such as mlruns/served/challenger; '': the router's own.",
    )
    policy: PolicySettings | None = Field(
        default=None, description="Its `policy` section; none: the router's own."
    )
    guard: GuardSettings | None = Field(
        default=None, description="Its `guard` section; none: the router's own."
    )


class OutageSettings(Settings):
    """What ends a canary at once."""

    requests: int = Field(
        default=10, ge=3, le=1000, description="The challenger's newest outcomes that are looked at."
    )
    share: float = Field(default=0.5, gt=0, le=1, description="Share of them that has to have failed.")
    window_s: float = Field(
        default=60.0, gt=0, description="Older outcomes are not looked at, in seconds."
    )


class CanarySettings(Settings):
    """A challenger gets a share of the traffic, and more of it while nothing speaks against it."""

    enabled: bool = Field(default=False, description="Whether challengers are tried.")
    challenger: ChallengerSettings = Field(
        default=ChallengerSettings(), description="What is to be tried."
    )
    start: Start = Field(
        default=Start.AUTO,
        description="'auto': when there is a challenger that was not tried yet; 'manual': by "
        "`steersman canary start`.",
    )
    shares: tuple[float, ...] = Field(
        default=(0.05, 0.2, 0.5, 1.0), description="Of the traffic, stage by stage; each above the last."
    )
    control: float = Field(
        default=0.02,
        ge=0,
        le=0.5,
        description="Share of the traffic that the champion keeps to the end of the last stage, to "
        "compare with; 0: none, and p99 has to double there.",
    )
    hold_s: float = Field(default=1800.0, gt=0, description="Least time of each stage, in seconds.")
    least_requests: int = Field(
        default=500,
        ge=20,
        description="The challenger's outcomes that each stage needs, however long that takes.",
    )
    split: Split = Field(
        default=Split.SESSION,
        description="What stays together: 'session' (each request where there is none), 'tenant', "
        "'request', or 'switchback': all traffic of a stretch of time.",
    )
    block_s: float = Field(
        default=60.0, ge=1, description="Length of a stretch of 'switchback', in seconds."
    )
    washout_s: float = Field(
        default=5.0, ge=0, description="Requests that come so soon after its begin do not count."
    )
    p99_rise: float = Field(
        default=0.3, gt=0, description="Rise of p99 of TTFT or E2E that ends it, as a share."
    )
    error_rise: float = Field(
        default=0.005, gt=0, lt=1, description="Rise of the error rate that ends it."
    )
    missed_rise: float = Field(
        default=0.05,
        gt=0,
        lt=1,
        description="Rise of the share of requests that fail or miss an objective that ends it.",
    )
    alpha: float = Field(
        default=0.05,
        gt=0,
        lt=0.5,
        description="Chance that a challenger which is no different is found worse, in a whole canary.",
    )
    outage: OutageSettings = Field(default=OutageSettings(), description="What ends a canary at once.")
    interval_s: float = Field(
        default=1.0, ge=0.05, le=60, description="Time between two looks at the figures, in seconds."
    )
    state_file: str = Field(
        default="",
        description="Where it is remembered how far it is; '': only on the shared server.",
    )
    evidence_directory: str = Field(
        default="",
        description="Where its result is left for `steersman registry watch`; '': beside its bundle.",
    )

    @model_validator(mode="after")
    def _check(self) -> Self:
        shares = self.shares
        rising = all(a < b for a, b in pairwise(shares))
        if not shares or not rising or shares[0] <= 0.0 or shares[-1] > 1.0:
            raise ValueError(f"shares {list(shares)} have to rise, from above 0 to 1 at most")
        if self.washout_s >= self.block_s:
            raise ValueError("washout_s leaves nothing of block_s; make it shorter")
        challenger = self.challenger
        if self.enabled and not (challenger.bundle or challenger.policy or challenger.guard):
            raise ValueError("enabled needs a challenger; name its bundle, policy or guard")
        return self
