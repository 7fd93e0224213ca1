"""The reasons for which the guard steps in, and their limits."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from steersman.traces.settings import Settings


class FallbackReason(StrEnum):
    """Why the learned policy did not decide."""

    NO_MODEL = "no_model"
    """There is none, or none could be loaded."""
    STALE = "stale_snapshot"
    """The metrics of too many candidates are too old."""
    OUT_OF_RANGE = "out_of_range"
    """Too many features lie outside what it was trained on."""
    ERROR = "error"
    """It raised an exception."""
    DEADLINE = "deadline"
    """It took too long."""
    INVALID_CHOICE = "invalid_choice"
    """It chose nothing, or what the mask forbids."""
    NON_FINITE = "non_finite"
    """A score of a candidate is NaN or infinite."""
    DISAGREEMENT = "disagreement"
    """Its ensemble's heads disagree."""
    SLOW_CHOICE = "slow_choice"
    """Its choice is predicted to be far slower to the first token than the best one, and dear."""
    CROWDED = "crowded"
    """Its choice has had too large a share of recent requests, is busier than the others, and dearer, by
    marginal cost, than the better of two drawn at random."""
    COSTLY = "costly"
    """Its choices are dearer, by their marginal cost, than the better of two drawn at random."""
    LATCHED = "latched"
    """It tripped too often, and has not yet proved itself again."""


class GuardSettings(Settings):
    """When the guard steps in, and who decides then."""

    fallbacks: tuple[str, ...] = Field(
        default=("marginal-cost", "p2c"),
        min_length=1,
        description="Policies that decide in place of the learned one: the first whose scores are "
        "finite, or the last.",
    )
    deadline_ms: float = Field(
        default=5.0, gt=0, description="Longest time the learned policy may take for one decision."
    )
    max_age_s: float = Field(
        default=5.0, gt=0, description="Metrics of a replica that are older than this are stale."
    )
    max_stale_share: float = Field(
        default=0.5, ge=0, le=1, description="Share of the candidates that may be stale."
    )
    range_tolerance: float = Field(
        default=0.25,
        ge=0,
        description="How far beyond its training range a feature may lie, as a share of its width.",
    )
    max_outside_share: float = Field(
        default=0.05, ge=0, le=1, description="Share of all features that may lie outside their range."
    )
    max_disagreement: float = Field(
        default=0.5,
        gt=0,
        le=1,
        description="Mean distance (total variation, 0 to 1) of the heads' choice probabilities from "
        "their average.",
    )
    slow_factor: float = Field(
        default=4.0, ge=1, description="The choice's predicted TTFT over the best candidate's, at most."
    )
    slow_slack_s: float = Field(
        default=1.0, ge=0, description="Added to the limit that slow_factor sets, in seconds."
    )
    share_window: int = Field(
        default=200, ge=10, description="Recent decisions over which a replica's share is counted."
    )
    share_factor: float = Field(
        default=4.0,
        ge=1,
        description="Limit of a replica's share: 1 - (1 - fair) ^ factor, about factor times its fair "
        "share of the pool's capacity in a large pool, and always under 1.",
    )
    cost_window: int = Field(
        default=300, ge=1, description="Decisions over which the marginal cost of choices is averaged."
    )
    cost_slack: float = Field(
        default=0.7,
        ge=0,
        description="How much dearer than the better of two random candidates choices may be, by their "
        "marginal cost, in units of J.",
    )
    cost_factor: float = Field(
        default=1.5,
        ge=1,
        description="Marginal cost of a choice over the cheapest candidate's, up to which it is not "
        "dear: it may be slow, and by as much more may it exceed the better of two random candidates.",
    )
    latch_trips: int = Field(
        default=25, ge=1, description="Trips within latch_window decisions that latch the fallback."
    )
    latch_window: int = Field(default=100, ge=1, description="Decisions over which trips are counted.")
    latch_hold_s: float = Field(
        default=30.0, ge=0, description="How long a latched policy is not even asked, in seconds."
    )
    latch_clean: int = Field(
        default=50, ge=1, description="Sound answers in a row, unserved, after which it serves again."
    )
