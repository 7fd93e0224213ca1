"""One refit: read the newest outcomes, fit, judge on the newest slice, replace the bundle if better.

Run by a worker process that a router starts (`serving/refit.py`) or a person (`steersman train refit`).
Each model of the bundle is judged by itself: the latency model may be replaced and the length model
stay. What was served before is kept beside the bundle, as `<bundle>.previous`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from steersman import __version__
from steersman.agents.alone import alone
from steersman.agents.fit.fitted import FittedModel
from steersman.agents.refit.attempt import refit_latency, refit_length
from steersman.agents.refit.outcomes import logged_outcomes, taught
from steersman.predictors.bundle import (
    LATENCY_FILE,
    LENGTH_FILE,
    MANIFEST,
    Bundle,
    copy_bundle,
    load_bundle,
    write_bundle,
)
from steersman.predictors.latency import AnalyticLatency, LatencyModel
from steersman.predictors.length import FallbackLength, LengthModel
from steersman.traces.errors import ArtifactError
from steersman.traces.outcome_log import read_newest


@dataclass(frozen=True)
class RefitPlan:
    """What to refit from what."""

    log: Path
    """Directory of the outcome log."""
    bundle: Path
    """Directory of the bundle that serves; need not exist."""
    window: int = 20_000
    """Most outcomes to learn from."""
    read: int = 60_000
    """Newest outcomes to choose them from."""
    since_s: float | None = None
    """Unix time of a change: what ended later is also learned from by itself. None: nothing changed."""
    seed: int = 0


@dataclass
class RefitReport:
    """What came of it."""

    replaced: list[str] = field(default_factory=list)
    """Models that were replaced: `latency`, `length`; empty if none was better."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Of each model, one line."""
    figures: dict[str, float] = field(default_factory=dict)
    """On the held-out slice; see `judge.py`."""
    outcomes: int = 0
    """Logged outcomes that teach."""
    version: str = ""
    """Of the bundle that serves now; empty if there is none."""


def refit(plan: RefitPlan) -> RefitReport:
    """Do it, once.

    Raises:
        TraceError: there is no log, or it cannot be read.
        ArtifactError: another refit is at work, the bundle is corrupt, was replaced meanwhile, or
            cannot be written.
    """
    with alone(plan.bundle, "refit"):
        served = load_bundle(plan.bundle) if (plan.bundle / MANIFEST).exists() else None
        outcomes = logged_outcomes(read_newest(plan.log, plan.read, taught))
        report = RefitReport(outcomes=len(outcomes), version=served.version if served else "")
        better: dict[str, FittedModel] = {}
        latency = (LatencyModel.from_bundle(served) if served else None) or AnalyticLatency()
        length = (LengthModel.from_bundle(served) if served else None) or FallbackLength()
        for name, attempt in (
            ("latency", partial(refit_latency, outcomes, latency)),
            ("length", partial(refit_length, outcomes, length)),
        ):
            fitted, verdict = attempt(window=plan.window, since_s=plan.since_s, seed=plan.seed)
            report.reasons[name] = verdict.reason
            report.figures |= {f"{name}.{key}": value for key, value in verdict.figures.items()}
            if fitted is not None and verdict.better:
                better[name] = fitted
        if better:
            report.version = _replace(plan, served, better, report).version
            report.replaced = list(better)
        return report


def previous_of(bundle: Path) -> Path:
    """Where the bundle that served before a refit is kept."""
    return bundle.with_name(f"{bundle.name}.previous")


def roll_back(directory: Path) -> Bundle:
    """Serve what served before the last refit; what serves now becomes the previous one.

    Raises:
        ArtifactError: there is no previous bundle, or one of the two is corrupt.
    """
    with alone(directory, "refit"):
        previous, served = load_bundle(previous_of(directory)), load_bundle(directory)
        copy_bundle(served, previous_of(directory))
        return copy_bundle(previous, directory)


def _replace(
    plan: RefitPlan, served: Bundle | None, better: Mapping[str, FittedModel], report: RefitReport
) -> Bundle:
    """Write the new bundle in one step; the old one is put aside first."""
    names = {"latency": LATENCY_FILE, "length": LENGTH_FILE}
    fresh = {names[name]: fitted.onnx for name, fitted in better.items()}
    now = datetime.now(UTC)
    digest = hashlib.sha256(b"".join(fresh.values())).hexdigest()[:8]
    trained_on = dict(served.manifest.trained_on) if served else {}
    refitted = {"models": sorted(better), "outcomes": report.outcomes, "of": report.version}
    if served is not None:
        _unchanged(served)
        copy_bundle(served, previous_of(plan.bundle))
    return write_bundle(
        plan.bundle,
        {**(served.contents if served else {}), **fresh},
        version=f"{now:%Y%m%d-%H%M%S}-{digest}-refit",
        code_version=__version__,
        created=now,
        trained_on={**trained_on, "refit": refitted},
    )


def _unchanged(served: Bundle) -> None:
    """Nobody has promoted another one meanwhile."""
    now = load_bundle(served.directory).version
    if now != served.version:
        raise ArtifactError(
            f"{served.directory}: bundle {served.version} was replaced by {now} meanwhile; refit again"
        )
