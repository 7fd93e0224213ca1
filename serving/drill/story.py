"""What happened in a rehearsal: its acts, what was said of them, and the figures they left."""

from __future__ import annotations

from dataclasses import dataclass, field

from steersman.agents.evidence import Evidence
from steersman.agents.retrain.plan import RetrainResult
from steersman.serving.canary.state import Transition
from steersman.serving.drill.figures import Drift, Harm, P99Ratio
from steersman.serving.replay_result import ReplayResult

CHANGED, RENEWED = "hardware changed", "new champion"
"""Acts with the same requests."""


@dataclass(frozen=True)
class Act:
    """A replay, and under which bundle it began."""

    name: str
    version: str
    began_unix_s: float
    result: ReplayResult


@dataclass
class Story:
    """What happened."""

    acts: list[Act] = field(default_factory=list)
    told: list[tuple[str, str]] = field(default_factory=list)
    """Pairs of what, and a sentence about it."""
    changed_unix_s: float = 0.0
    drift: Drift | None = None
    made: RetrainResult | None = None
    shadows: dict[str, Evidence] = field(default_factory=dict)
    """Evidence of the shadow reports, by which challenger it is about."""
    transitions: list[Transition] = field(default_factory=list)
    promoted: bool = False
    """Whether the challenger became champion with all gates passed."""
    p99: P99Ratio | None = None
    """Of TTFT after the change, under the rule and under the new champion."""
    harm: Harm = field(default_factory=lambda: Harm(0, 0, 0))
    stopped: str = ""
    """What stopped the bad challenger."""
    rollback_s: float = float("nan")
    log_cpu: float = float("nan")
    dr_error: float = float("nan")
