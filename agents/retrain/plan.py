"""What a retraining is to do, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from steersman.agents.evidence import Evidence
from steersman.agents.registry import Registered
from steersman.agents.retrain.settings import RetrainSettings
from steersman.agents.retrain.soundness import Screened
from steersman.predictors.bundle import Bundle

STAGES = ("log", "predictors", "policy", "comparison", "record")

Progress = Callable[[str, float, str], None]
"""Called with a stage's name, the share of it that is done, and what is being done."""


@dataclass(frozen=True)
class RetrainPlan:
    """What to learn from, and where."""

    log: Path
    """Directory of the outcome log."""
    out: Path
    """Work directory, of this retraining alone."""
    settings: RetrainSettings = field(default_factory=RetrainSettings)
    since_s: float | None = None
    """Unix time: what arrived earlier is not looked at. None: everything in the window."""


@dataclass(frozen=True)
class RetrainResult:
    """What came of it."""

    bundle: Bundle
    registered: Registered
    evidence: Evidence
    screened: Screened
    resumed: bool
    """Whether an earlier, interrupted retraining was gone on with."""
    predictors: dict[str, str]
    """Of each model, one line about what became of it."""
    tags: dict[str, str]
    """Its lineage."""
