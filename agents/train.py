"""The whole of training: from a scenario and its trace to a bundle in the registry.

::

    trace ─ split by time ─┬─ training 60 % ── length model ── latency model ── policy ─┐
                           └─ tuning   15 % ── checks on the way ── evaluation ─────────┤
                                                            bundle ── MLflow ── champion ┘

The last quarter of the trace is not touched: `steersman evaluate` judges on it.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from pydantic import Field

from steersman import __version__
from steersman.agents.evaluate.contestants import LEARNED, contestants
from steersman.agents.evaluate.run import Protocol, evaluate, run_count
from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.fit.fitted import FittedModel
from steersman.agents.fit.latency import fit_latency
from steersman.agents.fit.length import fit_length
from steersman.agents.learned.config import PolicySettings
from steersman.agents.learned.export import export_policy
from steersman.agents.learned.trainer import PolicyTrainer, TrainedPolicy
from steersman.agents.registry import Registered, Registry, RunRecord
from steersman.env.saturation import measure_saturation
from steersman.env.scenario import load_scenario, load_source
from steersman.predictors.bundle import (
    LATENCY_FILE,
    LENGTH_FILE,
    POLICY_FILE,
    Bundle,
    write_bundle,
)
from steersman.predictors.length import FallbackLength, LengthModel, LengthPredictor
from steersman.traces.schema import Scenario
from steersman.traces.settings import CONFIG_ROOT, Settings, load_settings

CHECKPOINT = "policy.checkpoint"
MARGINAL_COST = "marginal-cost"


class What(StrEnum):
    """What is trained."""

    ALL = "all"
    PREDICTORS = "predictors"
    POLICY = "policy"


class Stage(StrEnum):
    """Steps of a training, in order; those that do not apply are left out."""

    LENGTH = "length model"
    LATENCY = "latency model"
    POLICY = "policy"
    EVALUATION = "evaluation"
    RECORD = "record"


StageProgress = Callable[[Stage, float, str], None]
"""Called with the stage, the share of it that is done, and what is being done."""


class LatencySettings(Settings):
    """Simulated runs that the latency model learns from."""

    runs: int = Field(18, ge=3, description="runs, each on its own mix of hardware and load")
    decisions: int = Field(2000, ge=100, description="requests per run")


class EvaluationSettings(Settings):
    """The evaluation that is recorded with a training, on the tuning part of the trace."""

    loads: tuple[float, ...] = Field(
        (0.8, 0.95), min_length=1, description="arrival rates over saturation"
    )
    seeds: int = Field(5, ge=1, description="paired runs per load")
    requests: int = Field(2000, ge=20, description="counted arrivals per run")
    warmup_s: float = Field(60.0, ge=0, description="seconds before them, not counted")
    baselines: tuple[str, ...] = Field(
        (MARGINAL_COST, "p2c"), min_length=1, description="policies the learned one is compared with"
    )


class TrainSettings(Settings):
    """One file of `configs/training/`."""

    scenario: str = Field(
        "demo", description="name in configs/clusters, or path, of the cluster to train for"
    )
    trace: str | None = Field(None, description="bundled name or path; null: the scenario's own trace")
    seed: int = Field(0, ge=0, description="of everything random")
    latency: LatencySettings = Field(default_factory=LatencySettings, description="the latency model")
    policy: PolicySettings = Field(default_factory=PolicySettings, description="the routing policy")
    evaluation: EvaluationSettings = Field(
        default_factory=EvaluationSettings, description="the closing comparison"
    )


def load_train_settings(path_or_name: str | Path) -> TrainSettings:
    """Settings from `configs/training` by name (`default`, `demo`), or from the path of a YAML file.

    Raises:
        ConfigError: no such file, or a key of it is wrong.
    """
    bundled = CONFIG_ROOT / "training" / f"{path_or_name}.yaml"
    return load_settings(bundled if bundled.is_file() else Path(path_or_name), TrainSettings)


@dataclass(frozen=True)
class TrainResult:
    """What a training made, and how good it is."""

    bundle: Bundle
    registered: Registered
    champion: Path | None
    """The served directory, if the bundle was promoted."""
    metrics: Mapping[str, float]
    """Everything measured, as recorded in MLflow."""
    table: EvaluationTable | None
    """Of the learned policy and the baselines; None if no policy was trained."""
    ratios: Mapping[str, Ratio]
    """J of the learned policy over each baseline's."""
    seconds: Mapping[str, float]
    """Wall time of each stage."""
    curves: Mapping[str, list[tuple[int, float]]]
    """Of the policy's training, as (step, value); empty without one."""

    @property
    def verdict(self) -> str:
        """What the intervals allow to be said, in one line; empty without a policy."""
        return "; ".join(_verdict(name, ratio) for name, ratio in self.ratios.items())


@dataclass
class _Made:
    """What the stages have made so far."""

    files: dict[str, bytes] = field(default_factory=dict)
    metrics: dict[str, float] = field(default_factory=dict)
    texts: dict[str, bytes] = field(default_factory=dict)
    curves: dict[str, list[tuple[int, float]]] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    length: LengthPredictor = field(default_factory=FallbackLength)
    table: EvaluationTable | None = None


def train(
    settings: TrainSettings,
    *,
    what: What = What.ALL,
    registry: Registry,
    out: Path,
    promote: bool = False,
    resume: bool = False,
    predictors: Bundle | None = None,
    progress: StageProgress | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> TrainResult:
    """Train, evaluate, record; on demand promote.

    Args:
        settings: of everything.
        what: the predictors, the policy on top of given predictors, or both.
        registry: where the run is recorded.
        out: work directory: the checkpoint and the bundle as `out/bundle`.
        promote: make the result the champion, whatever the verdict.
        resume: go on with the policy from the checkpoint in `out`.
        predictors: whose length and latency models to keep, where only the policy is trained.
        progress: told of every stage.
        now: the time that is written into the bundle.

    Raises:
        SteersmanError: in one line; see the stages.
    """
    tell = progress or _ignore
    scenario = _scenario(settings)
    made = _Made()
    if what is not What.POLICY:
        _timed(made, Stage.LENGTH, lambda: _length(settings, scenario, made, tell))
        _timed(made, Stage.LATENCY, lambda: _latency(settings, scenario, made, tell))
    elif predictors is not None:
        _keep(predictors, made)
    if what is not What.PREDICTORS:
        checkpoint = out / CHECKPOINT
        _timed(made, Stage.POLICY, lambda: _policy(settings, scenario, made, checkpoint, resume, tell))
    bundle = _write(settings, scenario, made, out / "bundle", now())
    if POLICY_FILE in made.files:
        _timed(made, Stage.EVALUATION, lambda: _evaluate(settings, scenario, made, bundle, tell))
    ratios = _ratios(made, settings)
    began_s = time.monotonic()
    tell(Stage.RECORD, 0.0, "MLflow")
    registered = registry.log_training_run(
        bundle,
        _record(settings, what, made, bundle),
        run_name=f"{what} {scenario.name} {bundle.version}",
    )
    champion = registry.promote(registered.version).directory if promote else None
    made.seconds[Stage.RECORD.value] = time.monotonic() - began_s
    tell(Stage.RECORD, 1.0, f"version {registered.version}")
    return TrainResult(
        bundle,
        registered,
        champion,
        made.metrics,
        made.table,
        ratios,
        dict(made.seconds),
        made.curves,
    )


def _scenario(settings: TrainSettings) -> Scenario:
    scenario = load_scenario(settings.scenario)
    if settings.trace is not None and settings.trace != scenario.trace:
        scenario = replace(scenario, trace=settings.trace, saturation_rps=None)
    if scenario.saturation_rps is None:
        scenario = replace(scenario, saturation_rps=measure_saturation(scenario))
    return scenario


def _length(settings: TrainSettings, scenario: Scenario, made: _Made, tell: StageProgress) -> None:
    source = load_source(scenario, "train")
    fitted = fit_length(source, seed=settings.seed, progress=lambda *at: tell(Stage.LENGTH, *at))
    _take(made, fitted, LENGTH_FILE)
    made.length = LengthModel.from_bytes(fitted.onnx)


def _latency(settings: TrainSettings, scenario: Scenario, made: _Made, tell: StageProgress) -> None:
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


def _take(made: _Made, fitted: FittedModel, name: str) -> None:
    made.files[name] = fitted.onnx
    made.metrics |= {f"{fitted.kind}.{key}": value for key, value in fitted.metrics.items()}
    made.texts |= {f"{fitted.kind}/{key}.txt": text.encode() for key, text in fitted.text.items()}


def _keep(predictors: Bundle, made: _Made) -> None:
    names = (LENGTH_FILE, LATENCY_FILE)
    made.files |= {name: predictors.contents[name] for name in names if name in predictors.contents}
    made.length = LengthModel.from_bundle(predictors) or FallbackLength()


def _policy(
    settings: TrainSettings,
    scenario: Scenario,
    made: _Made,
    checkpoint: Path,
    resume: bool,
    tell: StageProgress,
) -> None:
    trainer = PolicyTrainer(
        scenario,
        load_source(scenario, "train"),
        load_source(scenario, "tune"),
        made.length,
        settings.policy,
        seed=settings.seed,
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
        "policy.check_ratio": trained.check_ratio,
        "policy.states": float(trained.states),
        "policy.decisions": float(trained.decisions),
        "policy.seconds": trained.seconds,
    }
    made.curves |= {f"policy.{name}": curve for name, curve in trained.curves.items()}


def _evaluate(
    settings: TrainSettings, scenario: Scenario, made: _Made, bundle: Bundle, tell: StageProgress
) -> None:
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
    total = run_count(len(factories), 1, protocol)
    done = 0.0

    def advance(runs: float) -> None:
        nonlocal done
        done += runs
        tell(Stage.EVALUATION, min(done / total, 1.0), f"{total} paired runs")

    tell(Stage.EVALUATION, 0.0, f"{total} paired runs")
    made.table = evaluate(factories, [scenario], protocol, on_progress=advance)
    tell(Stage.EVALUATION, 1.0, "done")


def _ratios(made: _Made, settings: TrainSettings) -> dict[str, Ratio]:
    if made.table is None:
        return {}
    ratios = {name: made.table.ratio(LEARNED, name) for name in settings.evaluation.baselines}
    for name, ratio in ratios.items():
        key = f"evaluation.j_ratio.{name}"
        made.metrics |= {key: ratio.value, f"{key}.lo": ratio.lo, f"{key}.hi": ratio.hi}
    for run_cell in made.table.cells:
        for policy in made.table.policies:
            key = f"evaluation.j.{policy}.load_{run_cell.load:g}"
            made.metrics[key] = made.table.mean(policy, run_cell)
    return ratios


def _verdict(baseline: str, ratio: Ratio) -> str:
    if ratio.hi < 1.0:
        said = "better than"
    elif ratio.lo > 1.0:
        said = "worse than"
    else:
        said = "not clearly different from"
    return f"{said} {baseline}: J ratio {ratio}"


def _write(
    settings: TrainSettings, scenario: Scenario, made: _Made, directory: Path, at: datetime
) -> Bundle:
    digest = hashlib.sha256()
    for name in sorted(made.files):
        digest.update(made.files[name])
    trace = load_source(scenario)
    return write_bundle(
        directory,
        made.files,
        version=f"{at:%Y%m%d-%H%M%S}-{digest.hexdigest()[:8]}",
        code_version=__version__,
        created=at,
        trained_on={
            "scenario": scenario.name,
            "saturation_rps": scenario.saturation_rps,
            "trace": trace.name,
            "requests": len(trace),
            "fingerprint": trace.fingerprint(),
            "seed": settings.seed,
        },
    )


def _record(settings: TrainSettings, what: What, made: _Made, bundle: Bundle) -> RunRecord:
    files = dict(made.texts)
    if made.table is not None:
        files["evaluation.json"] = json.dumps(made.table.as_dict(), indent=1).encode()
    seconds = {f"seconds.{stage.replace(' ', '_')}": spent for stage, spent in made.seconds.items()}
    tags = {key: str(value) for key, value in bundle.manifest.trained_on.items()}
    return RunRecord(
        parameters={"what": what.value, **_flat(settings.model_dump())},
        metrics={**made.metrics, **seconds},
        curves=made.curves,
        tags={**tags, "code_version": bundle.manifest.code_version, "bundle": bundle.version},
        files=files,
    )


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings as `policy.ppo.clip: 0.2`."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def _policy_version(trained: TrainedPolicy) -> str:
    """Names the content: the same weights have the same version."""
    digest = hashlib.sha256()
    for name, tensor in sorted(trained.network.state_dict().items()):
        digest.update(name.encode() + tensor.numpy().tobytes())
    return digest.hexdigest()[:12]


def _timed(made: _Made, stage: Stage, run: Callable[[], None]) -> None:
    began_s = time.monotonic()
    run()
    made.seconds[stage.value] = time.monotonic() - began_s


def _ignore(stage: Stage, share: float, note: str) -> None:
    del stage, share, note
