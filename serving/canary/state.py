"""How far a canary is: all that has to survive a restart, and that routers know together."""

from __future__ import annotations

import math
from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from steersman.agents.sequential import BlockTest, RateTest
from steersman.serving.canary.histogram import quantile_s
from steersman.serving.canary.tally import (
    ARMS,
    E2E,
    ERRORS,
    GUARDS,
    MISSED,
    TTFT,
    Latencies,
    no_counts,
    no_latencies,
)

MOST_TRANSITIONS = 200
MOST_TRIED = 200
PRIORS = {ERRORS: 0.002, TTFT: 0.01, E2E: 0.01, MISSED: 0.02}
P99 = 0.99


class Phase(StrEnum):
    """Where it stands."""

    IDLE = "idle"
    """None has run, or its result has been taken up."""
    RUNNING = "running"
    PROMOTED = "promoted"
    """It passed: the challenger has all traffic until it is the champion."""
    ROLLED_BACK = "rolled_back"
    ABORTED = "aborted"


class Transition(BaseModel):
    """One line of the history."""

    model_config = ConfigDict(extra="ignore")

    at_unix_s: float
    what: str
    """`started`, `stage`, `rolled_back`, `aborted`, `promoted`, `done`."""
    challenger: str
    champion: str
    share: float
    """Of the traffic, from then on."""
    reason: str
    figures: dict[str, float] = Field(default_factory=dict)


class Block(BaseModel):
    """Outcomes of a stretch of a switchback that is not over."""

    index: int
    share: float
    challenger: bool
    counts: dict[str, list[int]] = Field(default_factory=no_counts)


class Figures(BaseModel):
    """What both arms have shown in a stage."""

    seen: dict[str, dict[str, list[int]]] = Field(
        default_factory=lambda: {arm: no_counts() for arm in ARMS}
    )
    latencies: Latencies = Field(default_factory=no_latencies)

    def outcomes(self, arm: str) -> int:
        """That ended well or badly."""
        return self.seen[arm][ERRORS][0]

    def error_rate(self, arm: str) -> float:
        """Share that failed; NaN of nothing."""
        return self.rate(arm, ERRORS)

    def rate(self, arm: str, guard: str) -> float:
        """Share that was bad; NaN of nothing."""
        outcomes, bad = self.seen[arm].get(guard, (0, 0))
        return bad / outcomes if outcomes else math.nan

    def p99_s(self, arm: str, guard: str) -> float:
        """Of TTFT or E2E; NaN of nothing."""
        return quantile_s(self.latencies[arm][guard], P99)


class CanaryState(BaseModel):
    """Everything. Unknown keys, of a later version, are ignored."""

    model_config = ConfigDict(extra="ignore", validate_assignment=False)

    revision: int = 0
    """Counts the changes."""
    phase: Phase = Phase.IDLE
    challenger: str = ""
    """Version of its bundle, with a mark of its policy or guard if it has its own."""
    champion: str = ""
    started_unix_s: float = 0.0
    stage: int = 0
    stage_since_unix_s: float = 0.0
    tests: dict[str, RateTest] = Field(default_factory=dict)
    """By guard; of the whole canary."""
    frozen: dict[str, RateTest] = Field(default_factory=dict)
    """By guard; of the last stage, against what the champion had shown before it."""
    last: dict[str, RateTest] = Field(default_factory=dict)
    """Of the last stage alone: in `tests` bets on a fault that comes late have been lost before."""
    block_tests: dict[str, BlockTest] = Field(default_factory=dict)
    blocks: list[Block] = Field(default_factory=list)
    """Those that are not over."""
    limits_s: dict[str, float] = Field(default_factory=dict)
    """TTFT and E2E above which an outcome is bad: the champion's p99 so far."""
    figures: Figures = Field(default_factory=Figures)
    """Of this stage."""
    reference: Figures = Field(default_factory=Figures)
    """Of the last stage in which both arms had traffic."""
    transitions: list[Transition] = Field(default_factory=list)
    tried: list[str] = Field(default_factory=list)
    """Challengers that need not be tried again by themselves."""
    start_asked_by: str = ""
    """Who asked for a start; empty for nobody."""
    evidence: str = ""
    """Of the last one that ended, as JSON; to be left for the registry."""
    evidence_left: bool = True

    @property
    def running(self) -> bool:
        """Whether both arms are to be told apart."""
        return self.phase is Phase.RUNNING

    def begin(self, challenger: str, champion: str, now_unix_s: float) -> None:
        """Start from the first stage, with nothing known."""
        self.phase = Phase.RUNNING
        self.challenger, self.champion = challenger, champion
        self.started_unix_s = self.stage_since_unix_s = now_unix_s
        self.stage = 0
        self.tests = {guard: RateTest(PRIORS[guard]) for guard in GUARDS}
        self.block_tests = {guard: BlockTest() for guard in GUARDS}
        self.blocks, self.limits_s = [], {}
        self.frozen, self.last = {}, {}
        self.figures, self.reference = Figures(), Figures()
        self.start_asked_by = ""

    def restore(self, known: CanaryState) -> None:
        """Whoever kept this has lost it, or has an older one: be what is known, unless this is how that
        canary ended."""
        same = (self.challenger, self.started_unix_s) == (known.challenger, known.started_unix_s)
        if self.revision >= known.revision or (same and known.running and not self.running):
            return
        for name, value in known.model_copy(deep=True):
            setattr(self, name, value)

    def note(self, transition: Transition) -> None:
        """Remember a transition."""
        self.transitions = [*self.transitions, transition][-MOST_TRANSITIONS:]

    def to_json(self) -> bytes:
        """For a file or a server."""
        return self.model_dump_json().encode()


def read_state(data: bytes | None) -> CanaryState:
    """The inverse of `to_json`; of nothing an idle one.

    Raises:
        ValueError: it is damaged; in one line.
    """
    if not data:
        return CanaryState()
    try:
        return CanaryState.model_validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise ValueError(f"{place or 'it'}: {first['msg']}") from None
