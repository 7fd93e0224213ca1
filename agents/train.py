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
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from steersman import __version__
from steersman.agents import promotion
from steersman.agents.evaluate.contestants import LEARNED
from steersman.agents.evaluate.statistics import Ratio
from steersman.agents.evaluate.table import EvaluationTable
from steersman.agents.evidence import Evidence, Verdict
from steersman.agents.gates import GateSettings
from steersman.agents.registry import Registered, Registry, RunRecord
from steersman.agents.train_settings import TrainSettings, What, load_train_settings
from steersman.agents.train_stages import (
    Made,
    Stage,
    StageProgress,
    evaluate_stage,
    keep,
    latency_stage,
    length_stage,
    policy_stage,
)
from steersman.env.saturation import with_traffic
from steersman.env.scenario import load_scenario, load_source
from steersman.predictors.bundle import POLICY_FILE, Bundle, write_bundle
from steersman.traces.errors import ArtifactError, ConfigError
from steersman.traces.scenario import Scenario

__all__ = [
    "Stage",
    "StageProgress",
    "TrainResult",
    "TrainSettings",
    "What",
    "load_train_settings",
    "train",
]

NO_WORSE = 0.05
"""A J ratio whose interval ends below 1 and this is no worse."""
CHECKPOINT = "policy.checkpoint"


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
        promote: make the result the champion, whatever the verdict; recorded as an override.
        resume: go on with the policy from the checkpoint in `out`.
        predictors: whose length and latency models to keep, where only the policy is trained.
        progress: told of every stage.
        now: the time that is written into the bundle.

    Raises:
        SteersmanError: in one line; see the stages.
    """
    tell = progress or _ignore
    scenario = with_traffic(load_scenario(settings.scenario), settings.trace)
    scenarios = [scenario, *(load_scenario(name) for name in settings.also)]
    registry.store.check()
    _make_work_directory(out)
    checkpoint = out / CHECKPOINT
    if resume and not checkpoint.is_file():
        raise ArtifactError(
            f"{checkpoint}: no checkpoint to resume from; give the work directory of the earlier "
            "training with --out, or leave --resume out"
        )
    made = Made()
    if what is not What.POLICY:
        _timed(made, Stage.LENGTH, lambda: length_stage(settings, scenario, made, tell))
        _timed(made, Stage.LATENCY, lambda: latency_stage(settings, scenario, made, tell))
    elif predictors is not None:
        keep(predictors, made)
    if what is not What.PREDICTORS:
        _timed(
            made, Stage.POLICY, lambda: policy_stage(settings, scenarios, made, checkpoint, resume, tell)
        )
    bundle = _write(settings, scenario, made, out / "bundle", now())
    if POLICY_FILE in made.files:
        _timed(made, Stage.EVALUATION, lambda: evaluate_stage(settings, scenarios, made, bundle, tell))
    ratios = _ratios(made, settings)
    began_s = time.monotonic()
    tell(Stage.RECORD, 0.0, "MLflow")
    registered = registry.log_training_run(
        bundle,
        _record(settings, what, made, bundle),
        run_name=f"{what} {scenario.name} {bundle.version}",
    )
    if ratios:
        registry.record_evidence(registered.version, evaluation_evidence(bundle, ratios, time.time()))
    champion = _promote(registry, registered.version) if promote else None
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


def _make_work_directory(out: Path) -> None:
    """Told now rather than when the checkpoint is due."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=out):
            pass
    except OSError as error:
        raise ConfigError(
            f"{out}: cannot be written ({error.strerror}); give a writable work directory with --out"
        ) from None


def _ratios(made: Made, settings: TrainSettings) -> dict[str, Ratio]:
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


def _promote(registry: Registry, version: str) -> Path:
    return promotion.promote(
        registry,
        version,
        gates=GateSettings(),
        by="training",
        now_unix_s=time.time(),
        override="asked for with --promote when it was trained",
    ).bundle.directory


def evaluation_evidence(bundle: Bundle, ratios: Mapping[str, Ratio], now_unix_s: float) -> Evidence:
    """What the closing comparison with the baselines says; it is against no champion.

    Args:
        bundle: with the learned policy.
        ratios: J of it over each baseline's, with 95 % intervals; at least one.
        now_unix_s: seconds since 1970.
    """
    verdict: Verdict = "insufficient"
    if any(ratio.lo > 1.0 for ratio in ratios.values()):
        verdict = "worse"
    elif all(ratio.hi < 1.0 for ratio in ratios.values()):
        verdict = "better"
    elif all(ratio.hi <= 1.0 + NO_WORSE for ratio in ratios.values()):
        verdict = "no_worse"
    return Evidence(
        kind="evaluation",
        challenger=bundle.version,
        champion="",
        verdict=verdict,
        reasons=tuple(_verdict(name, ratio) for name, ratio in ratios.items()),
        figures={f"j_ratio.{name}": ratio.value for name, ratio in ratios.items()},
        made_unix_s=now_unix_s,
        by="training",
    )


def _verdict(baseline: str, ratio: Ratio) -> str:
    if ratio.hi < 1.0:
        said = "better than"
    elif ratio.lo > 1.0:
        said = "worse than"
    else:
        said = "not clearly different from"
    return f"{said} {baseline}: J ratio {ratio}"


def _write(
    settings: TrainSettings, scenario: Scenario, made: Made, directory: Path, at: datetime
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
            "also": list(settings.also),
            "saturation_rps": scenario.saturation_rps,
            "trace": trace.name,
            "requests": len(trace),
            "fingerprint": trace.fingerprint(),
            "seed": settings.seed,
        },
    )


def _record(settings: TrainSettings, what: What, made: Made, bundle: Bundle) -> RunRecord:
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


def _timed(made: Made, stage: Stage, run: Callable[[], None]) -> None:
    began_s = time.monotonic()
    run()
    made.seconds[stage.value] = time.monotonic() - began_s


def _ignore(stage: Stage, share: float, note: str) -> None:
    del stage, share, note
