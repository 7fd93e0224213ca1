"""How long a rehearsal is, and what happens in it."""

from __future__ import annotations

from pydantic import Field

from steersman.traces.settings import Settings


class RehearsalSettings(Settings):
    """Requests are those of an act; what a figure needs is in docs/rehearsal.md."""

    scenario: str = Field("demo", description="cluster that is emulated, and its traffic")
    load: float = Field(
        0.50, gt=0, le=1.5, description="arrival rate over saturation, before the change"
    )
    slowdowns: tuple[float, ...] = Field(
        (2.5, 1.6, 1.0, 1.0), description="by replica: how many times as long it takes after the change"
    )
    before: int = Field(500, ge=20, description="requests before the change")
    judged: int = Field(1200, ge=100, description="requests after the change, served by both models")
    settling: int = Field(
        200, ge=0, description="of those, the first that do not count: queues are filling"
    )
    shadow: int = Field(600, ge=20, description="requests that a challenger looks on at")
    chunk: int = Field(200, ge=10, description="requests between two looks at a canary")
    most: int = Field(3000, ge=50, description="requests of a canary, at most")
    shares: tuple[float, ...] = Field((0.05, 0.2, 0.5, 1.0), description="stages of the canary")
    hold_s: float = Field(10.0, gt=0, description="least time of a stage")
    least_requests: int = Field(60, ge=20, description="the challenger's outcomes in a stage, at least")
    priced: int = Field(400, ge=20, description="requests that the cost of the outcome log is taken of")
    output_factor: float = Field(
        1.0, gt=0, le=1, description="factor on the trace's answers; shorter ones end sooner"
    )
    stream_interval: int = Field(8, ge=1, description="tokens an emulated backend sends at a time")
    seed: int = Field(0, ge=0, description="of everything random")
    streams: int = Field(10, ge=2, description="streams of the replay in a shadow report")
    least_decisions: int = Field(300, ge=1, description="decisions that a shadow report's verdict needs")
    retrain: str = Field(
        "rehearsal",
        description="settings of the retraining: a name in configs/retraining, or a YAML file",
    )


def quick() -> RehearsalSettings:
    """The whole story in little more than a minute; its figures claim nothing."""
    return RehearsalSettings(
        before=30,
        judged=260,
        settling=20,
        shadow=20,
        chunk=30,
        most=90,
        shares=(0.5, 1.0),
        hold_s=1.0,
        least_requests=20,
        priced=20,
        stream_interval=32,
        streams=5,
        least_decisions=20,
        output_factor=0.12,
        load=1.4,
        retrain="rehearsal-quick",
    )
