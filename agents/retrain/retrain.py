"""One retraining: from a router's outcome log to a challenger with its evidence.

::

    log ─ sound? ─ split by time ─┬─ 75 % ─ profiles ─ predictors ─ policy ── bundle ─┐
                                  └─ 25 % ─ champion against challenger, paired ──────┤
                                                          MLflow ── challenger, evidence

It makes a challenger and never a champion: what it found is evidence that `steersman promote` asks for.
Killed, it goes on where it was when it is started again with the same settings (`work.py`).
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from steersman import __version__
from steersman.agents.alone import alone
from steersman.agents.evidence import Evidence
from steersman.agents.learned.shipped import load_shipped
from steersman.agents.offpolicy.contestants import bundle_contestant
from steersman.agents.offpolicy.learning import learning
from steersman.agents.offpolicy.world import World, build_world
from steersman.agents.registry import Registered, Registry, RunRecord
from steersman.agents.retrain.comparison import compare
from steersman.agents.retrain.ground import practice_scenario, profile_files
from steersman.agents.retrain.lineage import fingerprint, lineage
from steersman.agents.retrain.plan import Progress, RetrainPlan, RetrainResult
from steersman.agents.retrain.predictors import refitted_predictors
from steersman.agents.retrain.settings import RetrainSettings
from steersman.agents.retrain.soundness import Screened, screen
from steersman.agents.retrain.work import Work
from steersman.agents.train_settings import TrainSettings
from steersman.agents.train_stages import Made, policy_stage
from steersman.env.saturation import with_traffic
from steersman.env.scenario import load_scenario
from steersman.predictors.bundle import (
    LENGTH_FILE,
    MANIFEST,
    POLICY_FILE,
    Bundle,
    load_bundle,
    write_bundle,
)
from steersman.predictors.length import LengthModel
from steersman.traces.outcome_log import read_newest
from steersman.traces.outcome_record import OutcomeRecord


def retrain(
    plan: RetrainPlan,
    registry: Registry,
    *,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
) -> RetrainResult:
    """Do it, once.

    Args:
        registry: whose champion is the parent (without one: the shipped policy), and where the
            challenger is recorded.
        clock: unix seconds.

    Raises:
        TraceError: there is no log, or it is not fit to learn from.
        ArtifactError: another retraining is at work here, or something cannot be written or served.
        ConfigError: a setting, or a log of a cluster that cannot be modelled.
    """
    tell = progress or _ignore
    registry.store.check()
    with alone(plan.out, "retraining"):
        return _Retraining(plan, registry, tell, clock).run()


class _Retraining:
    """One retraining, its stages in order."""

    def __init__(
        self, plan: RetrainPlan, registry: Registry, tell: Progress, clock: Callable[[], float]
    ) -> None:
        self._plan, self._settings = plan, plan.settings
        self._registry, self._tell, self._clock = registry, tell, clock
        self._work = Work(plan.out)
        served = registry.champion_directory
        self._champion = load_bundle(served) if (served / MANIFEST).is_file() else load_shipped()

    def run(self) -> RetrainResult:
        self._tell("log", 0.0, "read")
        screened, resumed = self._read()
        records = since_drift(screened.records, self._settings.soundness.least_requests)
        self._tell("log", 0.5, "calibrate")
        world = build_world(records)
        start_s = records[-1].arrival_unix_s - world.trace.duration_s
        cut_s = start_s + (1.0 - self._settings.held_share) * world.trace.duration_s
        train = [record for record in records if start_s <= record.arrival_unix_s < cut_s]
        self._tell("log", 1.0, f"{len(records)} requests")
        predictors = self._work.stage("predictors", lambda: self._predictors(train))
        policy = self._work.stage("policy", lambda: self._policy(build_world(train), predictors))
        tags = lineage(
            records,
            log=str(self._plan.log),
            parent=self._champion.version,
            seed=self._settings.seed,
            settings=_digest(self._settings),
        )
        bundle = self._bundle(predictors, policy, tags)
        comparison = self._work.stage("comparison", lambda: self._compare(world, bundle))
        evidence = Evidence.from_json(comparison["evidence.json"])
        texts = {**profile_files(world), **_texts(predictors), **_texts(policy), **_texts(comparison)}
        registered = self._record(bundle, evidence, tags, texts, policy)
        self._work.clear()
        lines = json.loads(predictors["report.json"])["reasons"]
        flat = {key: str(value) for key, value in tags.items()}
        return RetrainResult(bundle, registered, evidence, screened, resumed, lines, flat)

    def _read(self) -> tuple[Screened, bool]:
        """The sound records, those of an interrupted retraining if there is one."""
        settings, since_s = self._settings, self._plan.since_s or 0.0
        identity = _digest(settings, champion=self._champion.version, since_s=since_s)
        plan = self._work.plan()
        if plan is not None and plan.get("identity") == identity:
            first_s, last_s = float(plan["first_s"]), float(plan["last_s"])
            found = self._screened(lambda record: first_s <= record.arrival_unix_s <= last_s, 10**9)
            if fingerprint(found.records) == plan["fingerprint"]:
                return found, True
        found = self._screened(lambda record: not record.arrival_unix_s < since_s, settings.window)
        self._work.begin(
            {
                "identity": identity,
                "first_s": found.records[0].arrival_unix_s,
                "last_s": found.records[-1].arrival_unix_s,
                "fingerprint": fingerprint(found.records),
                "begun_unix_s": self._clock(),
            }
        )
        return found, False

    def _screened(self, wanted: Callable[[OutcomeRecord], bool], most: int) -> Screened:
        records = read_newest(self._plan.log, most, lambda record: record if wanted(record) else None)
        return screen(records, self._settings.soundness, now_unix_s=self._clock())

    def _predictors(self, train: list[OutcomeRecord]) -> dict[str, bytes]:
        return refitted_predictors(
            train,
            self._champion,
            window=self._settings.window,
            seed=self._settings.seed,
            tell=lambda share, note: self._tell("predictors", share, note),
        )

    def _policy(self, world: World, predictors: dict[str, bytes]) -> dict[str, bytes]:
        """A policy that practised on the log's cluster and on the scenarios."""
        settings = self._settings
        made = Made()
        if LENGTH_FILE in predictors:
            made.length = LengthModel.from_bytes(predictors[LENGTH_FILE])
        own = practice_scenario(world, self._work.practice)
        others = [with_traffic(load_scenario(name)) for name in settings.practise]
        policy_stage(
            TrainSettings(seed=settings.seed, jobs=settings.jobs, policy=settings.policy),
            [own, *others],
            made,
            self._work.checkpoint,
            self._work.checkpoint.is_file(),
            lambda _, share, note: self._tell("policy", share, note),
        )
        report = {"metrics": made.metrics, "curves": made.curves}
        return {POLICY_FILE: made.files[POLICY_FILE], "report.json": json.dumps(report).encode()}

    def _bundle(self, predictors: dict[str, bytes], policy: dict[str, bytes], tags: Any) -> Bundle:
        """As routers read it. Its version is that of its content: the same when it is made again."""
        contents = {
            name: data for name, data in {**predictors, **policy}.items() if name.endswith(".onnx")
        }
        digest = hashlib.sha256(b"".join(contents[name] for name in sorted(contents))).hexdigest()[:8]
        plan = self._work.plan() or {}
        at = datetime.fromtimestamp(float(plan.get("begun_unix_s", self._clock())), UTC)
        return write_bundle(
            self._work.bundle,
            contents,
            version=f"{at:%Y%m%d-%H%M%S}-{digest}-retrain",
            code_version=__version__,
            created=at,
            trained_on=dict(tags),
        )

    def _compare(self, world: World, bundle: Bundle) -> dict[str, bytes]:
        settings = self._settings
        found = compare(
            world,
            bundle_contestant(self._champion),
            bundle_contestant(bundle),
            settings.comparison,
            held_share=settings.held_share,
            jobs=settings.jobs,
            now_unix_s=self._clock(),
            tell=lambda share, note: self._tell("comparison", share, note),
        )
        tables = {"log": found.log.as_dict()}
        if found.scenarios is not None:
            tables["scenarios"] = found.scenarios.as_dict()
        return {
            "evidence.json": found.evidence.to_json().encode(),
            "texts/comparison.json": json.dumps(tables).encode(),
        }

    def _record(
        self,
        bundle: Bundle,
        evidence: Evidence,
        tags: Any,
        texts: dict[str, bytes],
        policy: dict[str, bytes],
    ) -> Registered:
        """In the registry, once, however often this is tried."""
        self._tell("record", 0.0, "MLflow")
        report = json.loads(policy["report.json"])
        record = RunRecord(
            parameters={"what": "retrain", **self._settings.model_dump(exclude={"policy"})},
            metrics={**report["metrics"], **evidence.figures},
            curves={name: [tuple(point) for point in curve] for name, curve in report["curves"].items()},
            tags={
                **{key: str(value) for key, value in tags.items()},
                "code_version": __version__,
                "bundle": bundle.version,
            },
            files={**texts, "retrain.json": self._settings.model_dump_json(indent=1).encode()},
        )

        def register() -> dict[str, bytes]:
            version = self._registry.find(bundle.version)
            if version is not None:  # killed between there and here
                made = Registered("", version, bundle.version)
            else:
                name = f"retrain {bundle.version}"
                made = self._registry.log_training_run(bundle, record, run_name=name)
            return {"registered.json": json.dumps(vars(made)).encode()}

        made = Registered(**json.loads(self._work.stage("registered", register)["registered.json"]))
        if evidence not in self._registry.evidence(made.version):
            self._registry.record_evidence(made.version, evidence)
        self._tell("record", 1.0, f"version {made.version}")
        return made


def since_drift(records: tuple[OutcomeRecord, ...], least: int) -> tuple[OutcomeRecord, ...]:
    """What arrived since latencies last changed, if that is enough: before it the cluster was another
    one.

    Args:
        records: by arrival.
        least: fewer are not enough, and all are taken.
    """
    changed_unix_s = learning(records).changed_unix_s
    since = tuple(record for record in records if record.arrival_unix_s >= changed_unix_s)
    return since if len(since) >= least else records


def _digest(settings: RetrainSettings, **more: object) -> str:
    """What must agree for a retraining to go on; how long and in how many processes may differ."""
    plain = settings.model_dump(mode="json", exclude={"jobs": True, "policy": {"budget_s"}})
    return hashlib.sha256(json.dumps([plain, more], sort_keys=True).encode()).hexdigest()[:16]


def _ignore(stage: str, share: float, note: str) -> None:
    del stage, share, note


def _texts(files: dict[str, bytes]) -> dict[str, bytes]:
    return {n.removeprefix("texts/"): data for n, data in files.items() if n.startswith("texts/")}
