"""The stages of a training: each adds what it made and measured."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from steersman.agents.evaluate.contestants import LEARNED, contestants
from steersman.agents.evaluate.run import Protocol, evaluate, run_count
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import fit_latency
from steersman.agents.fit.latency_quality import coverage_by_load
from steersman.agents.fit.length import fit_length
from steersman.agents.learned.export import export_policy
from steersman.agents.learned.ground import grounds_of
from steersman.agents.learned.trainer import PolicyTrainer, TrainedPolicy
from steersman.agents.report.calibration import calibration_files
from steersman.agents.train_settings import TrainSettings
from steersman.env.scenario import load_source
from steersman.predictors.bundle import LATENCY_FILE, LENGTH_FILE, POLICY_FILE, Bundle
from steersman.predictors.length import FallbackLength, LengthModel, LengthPredictor
from steersman.traces.scenario import Scenario


class Stage(StrEnum):
    """Steps of a training, in order; those that do not apply are left out."""

    LENGTH = "length model"
    LATENCY = "latency model"
    POLICY = "policy"
    EVALUATION = "evaluation"
    RECORD = "record"


StageProgress = Callable[[Stage, float, str], None]
"""Called with the stage, the share of it that is done, and what is being done."""


@dataclass
class Made:
    """What the stages have made so far."""

    files: dict[str, bytes] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    length: LengthPredictor = field(default_factory=FallbackLength)
    table: EvaluationTable | None = None


def length_stage(settings: TrainSettings, scenario: Scenario, made: Made, tell: StageProgress) -> None:
    """Fit the length model on the training part."""
    source = load_source(scenario, "train")
    fitted = fit_length(source, seed=settings.seed, progress=lambda *at: tell(Stage.LENGTH, *at))
    _take(made, fitted, LENGTH_FILE)
    made.length = LengthModel.from_bytes(fitted.onnx)


def latency_stage(settings: TrainSettings, scenario: Scenario, made: Made, tell: StageProgress) -> None:
    """Fit the latency model on simulated runs of the training part."""
    fitted = fit_latency(
        scenario,
        load_source(scenario, "train"),
        seed=settings.seed,
        progress=lambda *at: tell(Stage.LATENCY, *at),
        length=made.length,
        runs=settings.latency.runs,
        decisions=settings.latency.decisions,
    )
    _take(made, fitted, LATENCY_FILE)


def _take(made: Made, fitted: FittedModel, name: str) -> None:
    made.files[name] = fitted.onnx
    made.metrics |= {f"{fitted.kind}.{key}": value for key, value in fitted.metrics.items()}
    made.texts |= {f"{fitted.kind}/{key}.txt": text.encode() for key, text in fitted.text.items()}
    figures = calibration_files(fitted.calibration, coverage_by_load(fitted.metrics))
    made.texts |= {f"{fitted.kind}/{key}": data for key, data in figures.items()}


def keep(predictors: Bundle, made: Made) -> None:
    """Take the predictors of a bundle instead."""
    names = (LENGTH_FILE, LATENCY_FILE)
    made.files |= {name: predictors.contents[name] for name in names if name in predictors.contents}
    made.length = LengthModel.from_bundle(predictors) or FallbackLength()


def policy_stage(
    settings: TrainSettings,
    scenarios: Sequence[Scenario],
    made: Made,
    checkpoint: Path,
    resume: bool,
    tell: StageProgress,
) -> None:
    """Train the routing policy and export it."""
    trainer = PolicyTrainer(
        grounds_of(scenarios),
        made.length,
        settings.policy,
        seed=settings.seed,
        jobs=settings.jobs,
        checkpoint=checkpoint,
        resume=resume,
        progress=lambda *at: tell(Stage.POLICY, *at),
    )
    trained = trainer.train()
    made.files[POLICY_FILE] = export_policy(
        trained.network,
        trained.ranges,
        trained.pool_range,
        trained.parity,
        version=_policy_version(trained),
    )
    made.metrics |= {
        "policy.best_check_ratio": trained.check_ratio,
        "policy.states": float(trained.states),
        "policy.decisions": float(trained.decisions),
        "policy.seconds": trained.seconds,
    }
    made.curves |= {f"policy.{name}": curve for name, curve in trained.curves.items()}


def evaluate_stage(
    settings: TrainSettings,
    scenarios: Sequence[Scenario],
    made: Made,
    bundle: Bundle,
    tell: StageProgress,
) -> None:
    """Compare the policy with its baselines, paired, on the tuning parts."""
    wanted = settings.evaluation
    factories = contestants([LEARNED, *wanted.baselines], bundle)
    protocol = Protocol(
        loads=wanted.loads,
        seeds=tuple(range(wanted.seeds)),
        requests=wanted.requests,
        window_s=0.0,
        warmup_s=wanted.warmup_s,
        split="tune",
        length=made.length,
    )
    total = run_count(len(factories), len(scenarios), protocol)
    done = 0.0

    def advance(runs: float) -> None:
        nonlocal done
        done += runs
        tell(Stage.EVALUATION, min(done / total, 1.0), f"{total} paired runs")

    tell(Stage.EVALUATION, 0.0, f"{total} paired runs")
    made.table = evaluate(factories, scenarios, protocol, on_progress=advance)
    tell(Stage.EVALUATION, 1.0, "done")


def _policy_version(trained: TrainedPolicy) -> str:
    """Names the content: the same weights have the same version."""
    digest = hashlib.sha256()
    for name, tensor in sorted(trained.network.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:12]
