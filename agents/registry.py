"""The local MLflow store: what was trained, from what, how good it was, and which one serves.

::

    mlruns/
    ├── mlflow.db          runs, metrics and the model registry (sqlite)
    ├── artifacts/         every run's bundle, models, curves and texts
    └── served/champion/   the promoted bundle, as the router reads it

Every training run becomes a version of the registered model `steersman-routing`; the newest carries
the alias `challenger`, the promoted one `champion`. Only promotion touches the served directory.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from steersman.agents.evidence import Evidence
from steersman.agents.mlflow_models import MAIN_FIRST, save_models
from steersman.predictors.bundle import Bundle, load_bundle, write_bundle
from steersman.traces.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow import MlflowClient

MODEL_NAME = "steersman-routing"
EXPERIMENT = "steersman-training"
EVALUATIONS = "steersman-evaluation"
CHALLENGER = "challenger"
CHAMPION = "champion"
_EVIDENCE = "evidence."
"""Begins the tags of a model version that hold its evidence."""
_BUNDLE = "bundle"
_MODELS = "models"


@dataclass(frozen=True)
class RunRecord:
    """Everything a training run leaves behind."""

    parameters: Mapping[str, Any]
    """Settings, flat; long values are cut by MLflow's limit, the full ones go to `settings.json`."""
    metrics: Mapping[str, float]
    """Final figures. Values that are not finite are left out."""
    curves: Mapping[str, Sequence[tuple[int, float]]] = field(default_factory=dict)
    """Metric name → (step, value) along the training."""
    tags: Mapping[str, str] = field(default_factory=dict)
    """For example code version, trace and its fingerprint."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Further artifacts: relative path → contents (LightGBM texts, plots, tables)."""


@dataclass(frozen=True)
class Registered:
    """Where a run went."""

    run_id: str
    version: str
    """Version of the registered model, `1`, `2`, ..."""
    bundle_version: str


class Registry:
    """The store under one directory. Opens (and at first creates) it on first use.

    Args:
        root: the `mlruns` directory.
        patience_s: how long to wait for another process that holds the database.

    Every method raises ArtifactError, in one line, when the store cannot be read or written.
    """

    def __init__(self, root: str | Path = "mlruns", *, patience_s: float = 10.0) -> None:
        self.root = Path(root).absolute()
        self._patience_s = patience_s
        self._client: MlflowClient | None = None

    @property
    def uri(self) -> str:
        """MLflow's address of the store."""
        return f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def champion_directory(self) -> Path:
        """The promoted bundle, as the router reads it; may not exist yet."""
        return self.root / "served" / CHAMPION

    def check(self) -> None:
        """Make the store's directory and see that it can be written, before hours of work are."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            raise ArtifactError(
                f"{self.root}: cannot be written ({error.strerror}); "
                "give a writable directory for the MLflow store"
            ) from None

    def log_training_run(self, bundle: Bundle, record: RunRecord, *, run_name: str) -> Registered:
        """Record a run, register its bundle as a new model version and call it the challenger."""
        with self._explained():
            client = self._open()
            experiment = self._experiment(client, EXPERIMENT)
            run = client.create_run(experiment, run_name=run_name, tags=dict(record.tags))
            run_id = run.info.run_id
            try:
                _log_numbers(client, run_id, record)
                self._log_files(client, run_id, bundle, record)
                version = self._register(client, run_id, bundle)
            except BaseException:
                client.set_terminated(run_id, status="FAILED")
                raise
            client.set_terminated(run_id)
            return Registered(run_id, version, bundle.version)

    def log_evaluation(self, record: RunRecord, *, run_name: str) -> str:
        """Record figures that belong to no new model, in an experiment of their own; the run's id."""
        with self._explained():
            client = self._open()
            experiment = self._experiment(client, EVALUATIONS)
            run = client.create_run(experiment, run_name=run_name, tags=dict(record.tags))
            run_id = str(run.info.run_id)
            try:
                _log_numbers(client, run_id, record)
                _log_texts(client, run_id, record)
            except BaseException:
                client.set_terminated(run_id, status="FAILED")
                raise
            client.set_terminated(run_id)
            return run_id

    def promote(self, version: str | None = None) -> Bundle:
        """Make a version the champion: verify its bundle, put it into the served directory whole.

        Args:
            version: of the registered model; None for the challenger.
        """
        if not (self.root / "mlflow.db").is_file():
            raise ArtifactError(
                f"{self.root}: no MLflow store here; name (--mlruns) the one 'steersman train' wrote"
            )
        with self._explained():
            client = self._open()
            if version is None:
                version = str(client.get_model_version_by_alias(MODEL_NAME, CHALLENGER).version)
            found = client.get_model_version(MODEL_NAME, version)
            with tempfile.TemporaryDirectory() as scratch:
                bundle = load_bundle(client.download_artifacts(str(found.run_id), _BUNDLE, scratch))
            manifest = bundle.manifest
            served = write_bundle(
                self.champion_directory,
                bundle.contents,
                version=manifest.version,
                code_version=manifest.code_version,
                created=manifest.created,
                trained_on=manifest.trained_on,
            )
            client.set_registered_model_alias(MODEL_NAME, CHAMPION, version)
            return served

    def version_of(self, alias: str) -> str | None:
        """The model version an alias points at; None if there is none."""
        with self._explained():
            from mlflow.exceptions import MlflowException

            client = self._open()
            try:
                return str(client.get_model_version_by_alias(MODEL_NAME, alias).version)
            except MlflowException as error:
                if error.error_code in {"RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE"}:
                    return None
                raise

    def record_evidence(self, version: str, evidence: Evidence) -> None:
        """Keep what was found out about a model version with it."""
        text = evidence.to_json()
        # Sorts by time; the digest keeps apart what was found in the same millisecond.
        digest = hashlib.sha256(text.encode()).hexdigest()[:8]
        key = f"{_EVIDENCE}{int(1000.0 * evidence.made_unix_s):015d}.{digest}"
        with self._explained():
            self._open().set_model_version_tag(MODEL_NAME, version, key, text)

    def evidence(self, version: str) -> tuple[Evidence, ...]:
        """What was found out about a model version, the oldest first."""
        with self._explained():
            tags = self._open().get_model_version(MODEL_NAME, version).tags
        return tuple(Evidence.from_json(tags[key]) for key in sorted(tags) if key.startswith(_EVIDENCE))

    def _open(self) -> MlflowClient:
        if self._client is None:
            self.root.mkdir(parents=True, exist_ok=True)
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        self._probe()
        return self._client

    def _probe(self) -> None:
        """Touch the database as a writer: MLflow's own patience is 20 s, its errors are pages long."""
        database = self.root / "mlflow.db"
        if database.exists():
            with closing(sqlite3.connect(database, timeout=self._patience_s)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.rollback()

    def _experiment(self, client: MlflowClient, name: str) -> str:
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        location = (self.root / "artifacts").as_uri()
        return str(client.create_experiment(name, artifact_location=location))

    def _log_files(self, client: MlflowClient, run_id: str, bundle: Bundle, record: RunRecord) -> None:
        client.log_artifacts(run_id, str(bundle.directory), _BUNDLE)
        _log_texts(client, run_id, record)
        with tempfile.TemporaryDirectory() as scratch:
            if save_models(bundle, Path(scratch) / _MODELS):
                client.log_artifacts(run_id, str(Path(scratch) / _MODELS), _MODELS)

    def _register(self, client: MlflowClient, run_id: str, bundle: Bundle) -> str:
        if not client.search_registered_models(f"name = '{MODEL_NAME}'"):
            client.create_registered_model(
                MODEL_NAME, description="Predictors and routing policy, trained and served together."
            )
        main = next((Path(name).stem for name in MAIN_FIRST if name in bundle.contents), None)
        part = _BUNDLE if main is None else f"{_MODELS}/{main}"
        source = f"{client.get_run(run_id).info.artifact_uri}/{part}"
        made = client.create_model_version(
            MODEL_NAME,
            source,
            run_id=run_id,
            tags={"bundle_version": bundle.version, "files": ", ".join(sorted(bundle.contents))},
        )
        client.set_registered_model_alias(MODEL_NAME, CHALLENGER, made.version)
        return str(made.version)

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Quiet MLflow, and turn what its layers raise into one line that says what to mend."""
        # A local store for local figures: nothing is reported to anyone.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        # Its bars for copies of a few small files fall in the middle of ours.
        os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        from alembic.util.exc import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        with _quiet():
            try:
                yield
            except (MlflowException, SQLAlchemyError, CommandError, sqlite3.Error, OSError) as error:
                raise ArtifactError(self._explain(str(error))) from None

    def _explain(self, text: str) -> str:
        reason = " ".join(text.split())
        database = self.root / "mlflow.db"
        if "database is locked" in reason:
            return f"{database}: is locked by another process; wait for it or stop it, then try again"
        if "not a database" in reason or "malformed" in reason:
            return f"{database}: is damaged; move it away, a new one is made on the next run"
        if "unable to open database" in reason or "readonly database" in reason:
            return f"{self.root}: cannot be written; give a writable directory for the MLflow store"
        if "RESOURCE_DOES_NOT_EXIST" in reason or "not found" in reason:
            return f"{self.root}: {reason[:200]}; record one with 'steersman train'"
        if "Can't locate revision" in reason or "out-of-date" in reason:
            return f"{database}: made by another MLflow version; run 'mlflow db upgrade {self.uri}'"
        return f"{self.root}: the MLflow store refused: {reason[:200]}; check the directory"


def _log_numbers(client: MlflowClient, run_id: str, record: RunRecord) -> None:
    from mlflow.entities import Metric, Param

    now_ms = client.get_run(run_id).info.start_time
    params = [Param(key, str(value)[:500]) for key, value in record.parameters.items()]
    points = [Metric(key, value, now_ms, 0) for key, value in record.metrics.items()]
    points += [
        Metric(key, value, now_ms, step) for key, curve in record.curves.items() for step, value in curve
    ]
    finite = [point for point in points if np.isfinite(point.value)]
    # MLflow takes at most a hundred parameters and a thousand metrics a batch.
    for first in range(0, len(params), 100):
        client.log_batch(run_id, params=params[first : first + 100])
    for first in range(0, len(finite), 1000):
        client.log_batch(run_id, metrics=finite[first : first + 1000])


def _log_texts(client: MlflowClient, run_id: str, record: RunRecord) -> None:
    settings = json.dumps(dict(record.parameters), indent=2, default=str)
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in {"settings.json": settings.encode(), **record.files}.items():
            path = Path(scratch) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        client.log_artifacts(run_id, scratch)


@contextmanager
def _quiet() -> Iterator[None]:
    """MLflow and its database layers talk of their own affairs; only errors are for the user."""
    loggers = [logging.getLogger(name) for name in ("mlflow", "alembic")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            # MLflow's use of SQLAlchemy, not ours to mend.
            warnings.filterwarnings("ignore", module=r"mlflow\..*")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)
