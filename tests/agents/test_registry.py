from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlparse

import mlflow.onnx
import numpy as np
import pytest
from mlflow import MlflowClient

from steersman.agents.evidence import Evidence
from steersman.agents.learned.shipped import MODEL_CARD
from steersman.agents.registry import CHALLENGER, CHAMPION, MODEL_NAME, Registry, RunRecord
from steersman.predictors.bundle import Bundle, load_bundle, write_bundle
from steersman.traces.errors import ArtifactError
from tests.agents.learned.conftest import random_batch
from tests.agents.learned.test_served import make_bundle
from tests.parity.test_policy import GRAPH, MODEL

RECORD = RunRecord(
    parameters={"ppo.learning_rate": 0.001, **{f"many.{i}": i for i in range(150)}},
    metrics={"j_ratio": 0.98, "broken": float("nan")},
    curves={"reward": [(1, -1.0), (2, -0.5)]},
    tags={"trace": "azure-chat"},
    files={"length/model.txt": b"tree", "curve.csv": b"step,value\n"},
)


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory, made_store: Callable[[Path], Path]) -> Registry:
    return Registry(made_store(tmp_path_factory.mktemp("mlruns")), patience_s=0.2)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return make_bundle(tmp_path_factory.mktemp("bundles") / "b1", {"policy.onnx": GRAPH})


def test_a_run_is_recorded_registered_and_promoted(registry: Registry, bundle: Bundle) -> None:
    assert registry.version_of(CHAMPION) is None
    registered = registry.log_training_run(bundle, RECORD, run_name="first")
    assert registered.bundle_version == "b1"
    assert registry.version_of(CHALLENGER) == registered.version
    assert not registry.champion_directory.exists(), "only promotion serves"

    client = MlflowClient(registry.store.uri, registry.store.uri)
    run = client.get_run(registered.run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params["ppo.learning_rate"] == "0.001"
    assert len(run.data.params) == 151
    assert run.data.metrics["j_ratio"] == 0.98
    assert "broken" not in run.data.metrics
    assert run.data.tags["trace"] == "azure-chat"
    curve = client.get_metric_history(registered.run_id, "reward")
    assert [(point.step, point.value) for point in curve] == [(1, -1.0), (2, -0.5)]
    assert Path(client.download_artifacts(registered.run_id, "length/model.txt")).read_bytes() == b"tree"

    card = Path(client.download_artifacts(registered.run_id, MODEL_CARD)).read_text("utf-8")
    assert client.get_model_version(MODEL_NAME, registered.version).description == card
    for told in ("`b1`", "`policy.onnx`", "trace: azure-chat", "| j_ratio | 0.98 |", "## Limits"):
        assert told in card
    assert "broken" not in card

    served = registry.promote()
    assert registry.version_of(CHAMPION) == registered.version
    assert served.directory == registry.champion_directory
    assert load_bundle(registry.champion_directory).contents == bundle.contents


def test_recording_and_promoting_say_nothing(
    registry: Registry, bundle: Bundle, capfd: pytest.CaptureFixture[str]
) -> None:
    registry.log_training_run(bundle, RECORD, run_name="quiet")
    registry.promote()
    assert capfd.readouterr() == ("", "")


def test_the_registered_model_is_an_onnx_model_with_a_signature(
    registry: Registry, bundle: Bundle
) -> None:
    registered = registry.log_training_run(bundle, RECORD, run_name="again")
    client = MlflowClient(registry.store.uri, registry.store.uri)
    source = urlparse(client.get_model_version(MODEL_NAME, registered.version).source).path
    model = mlflow.models.Model.load(source)
    assert model.signature is not None
    assert model.saved_input_example_info is not None
    assert model.signature.inputs.input_names() == ["replicas", "request", "pool", "mask"]
    graph = mlflow.onnx.load_model(source)
    batch = random_batch(0, 1, 3)
    inputs = {name: getattr(batch, name) for name in ("replicas", "request", "pool", "mask")}
    assert graph.SerializeToString()
    assert np.isfinite(MODEL.run(inputs)[0]).all()
    pickles = [p for p in registry.root.rglob("*") if p.suffix in {".pkl", ".pickle", ".pt", ".zip"}]
    assert pickles == []


def test_an_older_version_can_be_promoted_again(registry: Registry, tmp_path: Path) -> None:
    first = registry.log_training_run(
        make_bundle(tmp_path / "one", {"policy.onnx": GRAPH}), RECORD, run_name="one"
    )
    other = write_bundle(
        tmp_path / "two",
        {"policy.onnx": GRAPH, "note.txt": b"two"},
        version="b2",
        code_version="0",
        created=load_bundle(tmp_path / "one").manifest.created,
    )
    registry.log_training_run(other, RECORD, run_name="two")
    assert registry.promote().version == "b2"
    assert registry.promote(first.version).version == "b1"
    assert registry.version_of(CHAMPION) == first.version


def test_a_damaged_bundle_is_not_promoted(registry: Registry, tmp_path: Path) -> None:
    before = registry.promote().version
    made = registry.log_training_run(
        make_bundle(tmp_path / "b", {"policy.onnx": GRAPH}), RECORD, run_name="damaged"
    )
    client = MlflowClient(registry.store.uri, registry.store.uri)
    stored = Path(urlparse(client.get_run(made.run_id).info.artifact_uri).path) / "bundle"
    (stored / "policy.onnx").write_bytes(b"damaged")
    with pytest.raises(ArtifactError, match="SHA-256"):
        registry.promote()
    assert load_bundle(registry.champion_directory).version == before


def test_evidence_is_kept_with_the_version_in_the_order_of_time(
    registry: Registry, bundle: Bundle
) -> None:
    version = registry.log_training_run(bundle, RECORD, run_name="judged").version
    assert registry.evidence(version) == ()
    later = Evidence("shadow", "b1", "b0", "better", ("x" * 2000,), {"share": 0.5}, 2e9)
    first = Evidence("evaluation", "b1", "b0", "no_worse", ("J ratio 0.99",), {}, 1e9)
    twin = Evidence("evaluation", "b1", "b0", "worse", ("on other traffic",), {}, 1e9)
    for made in (later, first, twin):
        registry.record_evidence(version, made)
    kept = registry.evidence(version)
    assert kept[-1] == later
    assert {made.verdict for made in kept[:2]} == {"no_worse", "worse"}
    with pytest.raises(ArtifactError, match="99"):
        registry.record_evidence("99", first)


def test_an_unknown_version_is_refused_in_one_line(registry: Registry) -> None:
    with pytest.raises(ArtifactError, match="99") as caught:
        registry.promote("99")
    assert "\n" not in str(caught.value)


def test_promoting_from_a_mistyped_store_makes_none(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="no MLflow store here"):
        Registry(tmp_path / "mlrun").promote()
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_database_is_named(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / "mlflow.db").write_bytes(b"this is no database " * 100)
    with pytest.raises(ArtifactError, match=r"mlflow\.db: is damaged; move it away"):
        Registry(tmp_path).log_training_run(bundle, RECORD, run_name="x")


def test_a_store_that_cannot_be_written_is_named(tmp_path: Path, bundle: Bundle) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ArtifactError, match="file") as caught:
        Registry(tmp_path / "file" / "mlruns").log_training_run(bundle, RECORD, run_name="x")
    assert "\n" not in str(caught.value)


def test_a_locked_database_is_named(registry: Registry, bundle: Bundle) -> None:
    registry.log_training_run(bundle, RECORD, run_name="opens")
    lock = sqlite3.connect(registry.root / "mlflow.db", isolation_level=None)
    try:
        lock.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ArtifactError, match="is locked by another process"):
            registry.log_training_run(bundle, RECORD, run_name="locked out")
    finally:
        lock.execute("ROLLBACK")
        lock.close()
