"""The MLflow store behind the registry: a sqlite file under a directory, or a server.

MLflow is loaded on first use. Whatever its layers raise becomes one line that says what to mend.
"""

from __future__ import annotations

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

from steersman.agents.registry_errors import explain, explain_server
from steersman.traces.errors import ArtifactError

if TYPE_CHECKING:
    from mlflow import MlflowClient


class MlflowStore:
    """Opens (and at first creates) the store on first use.

    Args:
        root: directory of a local store.
        patience_s: how long to wait for another process that holds the database.
        tracking_uri: of an MLflow server (`http://host:5000`); empty for the store under `root`.
    """

    def __init__(self, root: Path, *, patience_s: float, tracking_uri: str) -> None:
        self.root = root
        self._patience_s = patience_s
        self._tracking_uri = tracking_uri
        self._client: MlflowClient | None = None

    @property
    def uri(self) -> str:
        """MLflow's address of the store."""
        return self._tracking_uri or f"sqlite:///{self._database}"

    @property
    def _database(self) -> Path:
        return self.root / "mlflow.db"

    @property
    def place(self) -> str:
        """Where the store is, for messages; a password in it is not shown."""
        return re.sub(r"//[^/@]*@", "//…@", self._tracking_uri) or str(self.root)

    def check_exists(self) -> None:
        """See that there is a store, so that a mistyped path makes none.

        Raises:
            ArtifactError: there is none.
        """
        if not self._tracking_uri and not self._database.is_file():
            raise ArtifactError(
                f"{self.root}: no MLflow store here; name (--mlruns) the one 'steersman train' wrote"
            )

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

    @contextmanager
    def opened(self) -> Iterator[MlflowClient]:
        """A client, quiet, whose errors are ArtifactErrors of one line."""
        with self._explained():
            yield self._open()

    def experiment(self, client: MlflowClient, name: str) -> str:
        """The id of the experiment of this name, which is made if need be."""
        found = client.get_experiment_by_name(name)
        if found is not None:
            return str(found.experiment_id)
        # A server has its own place for artifacts.
        location = None if self._tracking_uri else (self.root / "artifacts").as_uri()
        return str(client.create_experiment(name, artifact_location=location))

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
        database = self._database
        if not self._tracking_uri and database.exists():
            with closing(sqlite3.connect(database, timeout=self._patience_s)) as connection:
                connection.execute("BEGIN IMMEDIATE")
                connection.rollback()

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
