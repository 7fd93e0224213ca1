"""What a run of training or evaluation leaves in MLflow."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from steersman.agents.mlflow_models import save_models
from steersman.agents.registry_records import RunRecord
from steersman.predictors.bundle import Bundle

if TYPE_CHECKING:
    from mlflow import MlflowClient

BUNDLE = "bundle"
MODELS = "models"
"""Folders among a run's artifacts."""


@contextmanager
def started_run(
    client: MlflowClient, experiment: str, record: RunRecord, *, run_name: str
) -> Iterator[str]:
    """The id of a run with the numbers of the record; it has failed if the block does.

    Args:
        experiment: its id.
    """
    run = client.create_run(experiment, run_name=run_name, tags=dict(record.tags))
    run_id = str(run.info.run_id)
    try:
        _log_numbers(client, run_id, record)
        yield run_id
    except BaseException:
        client.set_terminated(run_id, status="FAILED")
        raise
    client.set_terminated(run_id)


def log_bundle(client: MlflowClient, run_id: str, bundle: Bundle) -> None:
    """The bundle as it is, and its models in MLflow's own form."""
    client.log_artifacts(run_id, str(bundle.directory), BUNDLE)
    with tempfile.TemporaryDirectory() as scratch:
        if save_models(bundle, Path(scratch) / MODELS):
            client.log_artifacts(run_id, str(Path(scratch) / MODELS), MODELS)


def log_texts(client: MlflowClient, run_id: str, record: RunRecord) -> None:
    """Settings and the files of the record."""
    settings = json.dumps(dict(record.parameters), indent=2, default=str)
    with tempfile.TemporaryDirectory() as scratch:
        for name, data in {"settings.json": settings.encode(), **record.files}.items():
            path = Path(scratch) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        client.log_artifacts(run_id, scratch)


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
