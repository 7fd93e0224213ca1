"""The local MLflow store: what was trained, from what, how good it was, and which one serves.

::

    mlruns/
    ├── mlflow.db          runs, metrics and the model registry (sqlite)
    ├── artifacts/         every run's bundle, models, curves and texts
    └── served/            bundles as routers read them (`served_directories.py`)

Every training run becomes a version of the registered model `steersman-routing`; the newest carries
the alias `challenger`, the promoted one `champion`. With a tracking URI the runs and the model registry
are an MLflow server's, and only `served/` is here.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sqlite3
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steersman.agents.evidence import Evidence
from steersman.agents.learned.shipped import MODEL_CARD
from steersman.agents.mlflow_models import MAIN_FIRST, save_models
from steersman.agents.model_card import model_card
from steersman.agents.registry_errors import explain, explain_server
from steersman.agents.registry_records import (
    CHANGE,
    EVIDENCE,
    Change,
    ModelRecord,
    Registered,
    RunRecord,
    evidence_in,
    record_of,
    tag_key,
)
from steersman.agents.served_directories import CHALLENGER, CHAMPION, ServedDirectories
from steersman.predictors.bundle import Bundle, load_bundle
from steersman.traces.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

__all__ = [
    "CHALLENGER",
    "CHAMPION",
    "MODEL_NAME",
    "Change",
    "ModelRecord",
    "Registered",
    "Registry",
    "RunRecord",
]

MODEL_NAME = "steersman-routing"
EXPERIMENT = "steersman-training"
EVALUATIONS = "steersman-evaluation"
_BUNDLE = "bundle"
_MODELS = "models"
_MOST_DESCRIPTION = 5000
"""Characters: what MLflow keeps of a version's description."""


class Registry:
    """The store under one directory. Opens (and at first creates) it on first use.

    Args:
        root: the `mlruns` directory.
        patience_s: how long to wait for another process that holds the database.
        tracking_uri: of an MLflow server (`http://host:5000`); empty for the store under `root`.

    Every method raises ArtifactError, in one line, when the store cannot be read or written.
    """

    def __init__(
        self, root: str | Path = "mlruns", *, patience_s: float = 10.0, tracking_uri: str = ""
    ) -> None:
        self.root = Path(root).absolute()
        self.served = ServedDirectories(self.root / "served")
        self._patience_s = patience_s
        self._tracking_uri = tracking_uri
        self._client: MlflowClient | None = None

    @property
    def uri(self) -> str:
        """MLflow's address of the store."""
        return self._tracking_uri or f"sqlite:///{self.root / 'mlflow.db'}"

    @property
    def champion_directory(self) -> Path:
        """The promoted bundle, as the router reads it; may not exist yet."""
        return self.served.directory(CHAMPION)

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
                card = model_card(bundle, record)
                client.log_text(run_id, card, MODEL_CARD)
                version = self._register(client, run_id, bundle, card)
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

    def promote(
        self, version: str | None = None, *, by: str = "", reason: str = "", now_unix_s: float = 0.0
    ) -> Bundle:
        """Make a version the champion: verify its bundle, put it into the served directory whole.

        Nothing is asked here; `promotion.py` asks for evidence first.

        Args:
            version: of the registered model; None for the challenger.
            by, reason, now_unix_s: who, why and when, for the history.
        """
        self.check_exists()
        if version is None:
            version = self.version_of(CHALLENGER)
        if version is None:
            raise ArtifactError(
                f"{self.place}: there is no challenger; record one with 'steersman train', or name a "
                "version ('steersman models' lists them)"
            )
        bundle = self.bundle(version)
        served = self.served.install(CHAMPION, bundle, version)
        self.set_champion(version, by=by, reason=reason, now_unix_s=now_unix_s)
        return served

    def set_champion(self, version: str, *, by: str, reason: str, now_unix_s: float) -> None:
        """Move the alias and remember the change. Serves nothing by itself."""
        previous = self.version_of(CHAMPION) or ""
        change = Change(version, previous, now_unix_s, by, reason)
        with self._explained():
            client = self._open()
            client.set_registered_model_alias(MODEL_NAME, CHAMPION, version)
            key = tag_key(CHANGE, now_unix_s, change.to_json())
            client.set_registered_model_tag(MODEL_NAME, key, change.to_json())

    def changes(self) -> tuple[Change, ...]:
        """Every change of the champion, the oldest first."""
        with self._explained():
            client = self._open()
            if not client.search_registered_models(f"name = '{MODEL_NAME}'"):
                return ()
            tags = client.get_registered_model(MODEL_NAME).tags
        return tuple(Change.from_json(tags[key]) for key in sorted(tags) if key.startswith(CHANGE))

    def bundle(self, version: str) -> Bundle:
        """The bundle of a version, verified; its directory is gone by the time it is returned."""
        with self._explained():
            client = self._open()
            found = client.get_model_version(MODEL_NAME, version)
            with tempfile.TemporaryDirectory() as scratch:
                return load_bundle(client.download_artifacts(str(found.run_id), _BUNDLE, scratch))

    def bundle_version(self, version: str) -> str:
        """The name of the bundle of a version."""
        with self._explained():
            found = self._open().get_model_version(MODEL_NAME, version)
        return str(found.tags.get("bundle_version", ""))

    def find(self, bundle_version: str) -> str | None:
        """The newest version whose bundle has this name; None if there is none."""
        with self._explained():
            found = self._search()
        named = [v for v in found if v.tags.get("bundle_version") == bundle_version]
        return max((str(v.version) for v in named), key=int, default=None)

    def models(self) -> tuple[ModelRecord, ...]:
        """Every version with its lineage and evidence, the newest first."""
        with self._explained():
            client = self._open()
            found = self._search()
            aliases: dict[str, list[str]] = {}
            if found:
                for alias, version in client.get_registered_model(MODEL_NAME).aliases.items():
                    aliases.setdefault(str(version), []).append(alias)
            records = [record_of(client, one, aliases) for one in found]
        return tuple(sorted(records, key=lambda record: -int(record.version)))

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
        key = tag_key(EVIDENCE, evidence.made_unix_s, text)
        with self._explained():
            self._open().set_model_version_tag(MODEL_NAME, version, key, text)

    def evidence(self, version: str) -> tuple[Evidence, ...]:
        """What was found out about a model version, the oldest first."""
        with self._explained():
            tags = self._open().get_model_version(MODEL_NAME, version).tags
        return evidence_in(tags)

    @property
    def place(self) -> str:
        """Where the store is, for messages; a password in it is not shown."""
        return re.sub(r"//[^/@]*@", "//…@", self._tracking_uri) or str(self.root)

    def check_exists(self) -> None:
        """See that there is a store, so that a mistyped path makes none.

        Raises:
            ArtifactError: there is none.
        """
        if not self._tracking_uri and not (self.root / "mlflow.db").is_file():
            raise ArtifactError(
                f"{self.root}: no MLflow store here; name (--mlruns) the one 'steersman train' wrote"
            )

    def _search(self) -> list[ModelVersion]:
        """Every version of the registered model."""
        client, token = self._open(), None
        found: list[ModelVersion] = []
        while True:
            page = client.search_model_versions(f"name = '{MODEL_NAME}'", 200, page_token=token)
            found += page
            token = page.token
            if not token:
                return found

    def _open(self) -> MlflowClient:
        if self._client is None:
            if not self._tracking_uri:
                self.root.mkdir(parents=True, exist_ok=True)
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=self.uri, registry_uri=self.uri)
        self._probe()
        return self._client

    def _probe(self) -> None:
        """Touch the database as a writer: MLflow's own patience is 20 s, its errors are pages long."""
        database = self.root / "mlflow.db"
        if not self._tracking_uri and database.exists():
            with closing(sqlite3.connect(database, timeout=self._patience_s)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.rollback()

    def _experiment(self, client: MlflowClient, name: str) -> str:
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # A server has its own place for artifacts.
        location = None if self._tracking_uri else (self.root / "artifacts").as_uri()
        return str(client.create_experiment(name, artifact_location=location))

    def _log_files(self, client: MlflowClient, run_id: str, bundle: Bundle, record: RunRecord) -> None:
        client.log_artifacts(run_id, str(bundle.directory), _BUNDLE)
        _log_texts(client, run_id, record)
        with tempfile.TemporaryDirectory() as scratch:
            if save_models(bundle, Path(scratch) / _MODELS):
                client.log_artifacts(run_id, str(Path(scratch) / _MODELS), _MODELS)

    def _register(self, client: MlflowClient, run_id: str, bundle: Bundle, card: str) -> str:
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
            description=card[:_MOST_DESCRIPTION],
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
        # A server that is down is told in seconds; by default MLflow tries for minutes.
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        from alembic.util.exc import CommandError
        from mlflow.exceptions import MlflowException
        from sqlalchemy.exc import SQLAlchemyError

        with _quiet():
            try:
                yield
            except (MlflowException, SQLAlchemyError, CommandError, sqlite3.Error, OSError) as error:
                if self._tracking_uri:
                    raise ArtifactError(explain_server(str(error), self.place)) from None
                raise ArtifactError(explain(str(error), self.root, self.uri)) from None


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
