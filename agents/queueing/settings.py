"""Settings of the queue in the router."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from steersman.traces.settings import Settings

LEVELS = 4
"""P0 to P3."""


class QueueSettings(Settings):
    """Holding requests back while every replica is full (SPEC C1)."""

    enabled: bool = Field(
        default=False, description="Whether to; if not, requests go straight to a replica."
    )
    waiting: float = Field(
        default=2.0,
        ge=0,
        description="A replica with more requests than this in its own queue, as believed, is full.",
    )
    kv_usage: float = Field(
        default=0.9, gt=0, le=1, description="One with more of its KV memory in use is full."
    )
    batch_use: float = Field(
        default=0.98, gt=0, le=1, description="One with more of its batch slots in use is full."
    )
    tpot_share: tuple[float, float, float, float] = Field(
        default=(0.97, 0.87, 0.8, 0.75),
        description="For P0 to P3: one where a request's foreseen TPOT (between the predicted and what "
        "the last answers had) exceeds this share of its objective is full. What is kept free of the "
        "lower classes is at once there for the higher.",
    )
    ttft_share: tuple[float, float, float, float] = Field(
        default=(0.6, 0.6, 0.5, 0.4),
        description="For P0 to P3: one where its predicted TTFT exceeds this share of its objective is "
        "full.",
    )
    prefix_share: float = Field(
        default=0.7,
        ge=0,
        le=1,
        description="As long as others have room, a request may go to a full one that has less than "
        "this share of their prompt tokens to compute, if its last answers met the TPOT objective; "
        "0: never.",
    )
    ageing_s: tuple[float, float, float, float] = Field(
        default=(15.0, 15.0, 30.0, 60.0),
        description="What has waited so long, P0 to P3, has a part in 'aged_share'; in seconds.",
    )
    aged_share: float = Field(
        default=0.05,
        ge=0,
        le=1,
        description="Share of turns that go to what has aged: the classes one after the other, the "
        "longest aged first within one.",
    )
    stretch: float = Field(
        default=20.0,
        ge=0,
        description="Seconds a request lets others overtake it for each second of the engine's time it "
        "is predicted to take; 0: first come, first served within a level.",
    )
    late: Literal["serve", "yield", "refuse"] = Field(
        default="yield",
        description="What can no longer meet its TTFT objective: served in its turn, behind those of "
        "its class that still can, or refused with 503.",
    )
    max_requests: int = Field(
        default=2000, ge=1, description="Most requests of a model in the queue; the lowest class goes."
    )
    kept_share: float = Field(
        default=0.02,
        ge=0,
        le=0.25,
        description="Share of 'max_requests' that each class may fill, however many of higher classes "
        "there are.",
    )
    max_bytes: int = Field(
        default=256 * 2**20, ge=2**20, description="Most bytes of their bodies, all models together."
    )
