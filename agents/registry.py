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

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from steersman.agents.evidence import Evidence
from steersman.agents.learned.shipped import MODEL_CARD
from steersman.agents.mlflow_models import MAIN_FIRST
from steersman.agents.mlflow_runs import BUNDLE, MODELS, log_bundle, log_texts, started_run
from steersman.agents.mlflow_store import MlflowStore
from steersman.agents.model_card import model_card
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
        self.store = MlflowStore(self.root, patience_s=patience_s, tracking_uri=tracking_uri)

    @property
    def champion_directory(self) -> Path:
        """The promoted bundle, as the router reads it; may not exist yet."""
        return self.served.directory(CHAMPION)

    def log_training_run(self, bundle: Bundle, record: RunRecord, *, run_name: str) -> Registered:
        """Record a run, register its bundle as a new model version and call it the challenger."""
        with self.store.opened() as client:
            experiment = self.store.experiment(client, EXPERIMENT)
            with started_run(client, experiment, record, run_name=run_name) as run_id:
                log_texts(client, run_id, record)
                log_bundle(client, run_id, bundle)
                card = model_card(bundle, record)
                client.log_text(run_id, card, MODEL_CARD)
                version = _register(client, run_id, bundle, card)
            return Registered(run_id, version, bundle.version)

    def log_evaluation(self, record: RunRecord, *, run_name: str) -> str:
        """Record figures that belong to no new model, in an experiment of their own; the run's id."""
        with self.store.opened() as client:
            experiment = self.store.experiment(client, EVALUATIONS)
            with started_run(client, experiment, record, run_name=run_name) as run_id:
                log_texts(client, run_id, record)
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
        self.store.check_exists()
        if version is None:
            version = self.version_of(CHALLENGER)
        if version is None:
            raise ArtifactError(
                f"{self.store.place}: there is no challenger; record one with 'steersman train', or "
                "name a version ('steersman models' lists them)"
            )
        bundle = self.bundle(version)
        served = self.served.install(CHAMPION, bundle, version)
        self.set_champion(version, by=by, reason=reason, now_unix_s=now_unix_s)
        return served

    def set_champion(self, version: str, *, by: str, reason: str, now_unix_s: float) -> None:
        """Move the alias and remember the change. Serves nothing by itself."""
        previous = self.version_of(CHAMPION) or ""
        change = Change(version, previous, now_unix_s, by, reason)
        with self.store.opened() as client:
            client.set_registered_model_alias(MODEL_NAME, CHAMPION, version)
            key = tag_key(CHANGE, now_unix_s, change.to_json())
            client.set_registered_model_tag(MODEL_NAME, key, change.to_json())

    def changes(self) -> tuple[Change, ...]:
        """Every change of the champion, the oldest first."""
        with self.store.opened() as client:
            if not client.search_registered_models(f"name = '{MODEL_NAME}'"):
                return ()
            tags = client.get_registered_model(MODEL_NAME).tags
        return tuple(Change.from_json(tags[key]) for key in sorted(tags) if key.startswith(CHANGE))

    def bundle(self, version: str) -> Bundle:
        """The bundle of a version, verified; its directory is gone by the time it is returned."""
        with self.store.opened() as client:
            found = client.get_model_version(MODEL_NAME, version)
            with tempfile.TemporaryDirectory() as scratch:
                return load_bundle(client.download_artifacts(str(found.run_id), BUNDLE, scratch))

    def bundle_version(self, version: str) -> str:
        """The name of the bundle of a version."""
        with self.store.opened() as client:
            found = client.get_model_version(MODEL_NAME, version)
        return str(found.tags.get("bundle_version", ""))

    def find(self, bundle_version: str) -> str | None:
        """The newest version whose bundle has this name; None if there is none."""
        with self.store.opened() as client:
            found = _versions(client)
        named = [v for v in found if v.tags.get("bundle_version") == bundle_version]
        return max((str(v.version) for v in named), key=int, default=None)

    def models(self) -> tuple[ModelRecord, ...]:
        """Every version with its lineage and evidence, the newest first."""
        with self.store.opened() as client:
            found = _versions(client)
            aliases: dict[str, list[str]] = {}
            if found:
                for alias, version in client.get_registered_model(MODEL_NAME).aliases.items():
                    aliases.setdefault(str(version), []).append(alias)
            records = [record_of(client, one, aliases) for one in found]
        return tuple(sorted(records, key=lambda record: -int(record.version)))

    def version_of(self, alias: str) -> str | None:
        """The model version an alias points at; None if there is none."""
        with self.store.opened() as client:
            from mlflow.exceptions import MlflowException

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
        with self.store.opened() as client:
            client.set_model_version_tag(MODEL_NAME, version, key, text)

    def evidence(self, version: str) -> tuple[Evidence, ...]:
        """What was found out about a model version, the oldest first."""
        with self.store.opened() as client:
            tags = client.get_model_version(MODEL_NAME, version).tags
        return evidence_in(tags)


def _versions(client: MlflowClient) -> list[ModelVersion]:
    """Every version of the registered model."""
    token = None
    found: list[ModelVersion] = []
    while True:
        page = client.search_model_versions(f"name = '{MODEL_NAME}'", 200, page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def _register(client: MlflowClient, run_id: str, bundle: Bundle, card: str) -> str:
    """The new version, which is the challenger."""
    if not client.search_registered_models(f"name = '{MODEL_NAME}'"):
        client.create_registered_model(
            MODEL_NAME, description="Predictors and routing policy, trained and served together."
        )
    main = next((Path(name).stem for name in MAIN_FIRST if name in bundle.contents), None)
    part = BUNDLE if main is None else f"{MODELS}/{main}"
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
