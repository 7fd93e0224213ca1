"""Promotion, rollback and the worker, against the local store and against a real MLflow server."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from steersman.agents.evidence import Evidence, Verdict
from steersman.agents.gates import GateSettings
from steersman.agents.promotion import promote, roll_back
from steersman.agents.registry import CHALLENGER, CHAMPION, Registry, RunRecord
from steersman.agents.registry_watch import RegistryWatch
from steersman.agents.served_directories import PREVIOUS
from steersman.agents.served_evidence import leave_evidence, waiting_evidence
from steersman.predictors.bundle import load_bundle, write_bundle
from steersman.traces.errors import ArtifactError
from tests.parity.test_policy import GRAPH
from tests.support.mlflow_server import MlflowServer, mlflow_server

NOW_S = 2e9
LINEAGE = {"parent": "b0", "fingerprint": "f00d", "code_version": "0"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MlflowServer]:
    with mlflow_server(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(scope="module", params=["sqlite", "server"])
def registry(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    root = tmp_path_factory.mktemp("mlruns")
    if request.param == "sqlite":
        return Registry(root)
    return Registry(root, tracking_uri=request.getfixturevalue("server").uri)


def record(registry: Registry, name: str, tmp_path: Path) -> str:
    bundle = write_bundle(
        tmp_path / name,
        {"policy.onnx": GRAPH, "name.txt": name.encode()},
        version=name,
        code_version="0",
        created=datetime(2026, 1, 1, tzinfo=UTC),
    )
    made = RunRecord({}, {"j_ratio": 0.9}, tags=LINEAGE)
    return registry.log_training_run(bundle, made, run_name=name).version


def found(kind: str, challenger: str, champion: str, verdict: Verdict = "better") -> Evidence:
    return Evidence(kind, challenger, champion, verdict, ("as measured",), {}, NOW_S)  # type: ignore[arg-type]


def serves(registry: Registry) -> str:
    return load_bundle(registry.champion_directory).version


def test_from_training_to_champion_and_back(registry: Registry, tmp_path: Path) -> None:
    gates = GateSettings()
    first = record(registry, "b1", tmp_path)
    with pytest.raises(ArtifactError, match=r"may not become champion: evaluation: there is none; "):
        promote(registry, gates=gates, by="me", now_unix_s=NOW_S)
    assert not registry.champion_directory.exists()
    with pytest.raises(ArtifactError, match="is no reason"):
        promote(registry, gates=gates, by="me", now_unix_s=NOW_S, override="because")
    made = promote(registry, gates=gates, by="me", now_unix_s=NOW_S, override="the first one of all")
    assert (made.version, serves(registry)) == (first, "b1")
    kept = registry.evidence(first)[-1]
    assert (kept.kind, kept.by, kept.made_unix_s) == ("override", "me", NOW_S)
    assert kept.reasons == ("the first one of all", "evaluation: there is none")

    second = record(registry, "b2", tmp_path)
    registry.record_evidence(second, found("evaluation", "b2", "b1"))
    registry.record_evidence(second, found("canary", "b2", "b1", "worse"))
    with pytest.raises(ArtifactError, match="canary: worse: as measured"):
        promote(registry, gates=gates, by="me", now_unix_s=NOW_S)
    better = Evidence("canary", "b2", "b1", "no_worse", ("second try",), {}, NOW_S + 1)
    registry.record_evidence(second, better)
    promote(registry, gates=gates, by="you", now_unix_s=NOW_S + 2)
    assert (serves(registry), registry.version_of(CHAMPION)) == ("b2", second)

    done = roll_back(registry, by="me", reason="pager", now_unix_s=NOW_S + 3)
    assert (done.version, done.problem) == (first, "")
    assert (serves(registry), registry.version_of(CHAMPION)) == ("b1", first)
    changes = [(c.version, c.previous, c.by) for c in registry.changes()]
    assert changes == [(first, "", "me"), (second, first, "you"), (first, second, "me")]
    assert registry.changes()[-1].reason == "rollback: pager"

    told = {one.version: one for one in registry.models()}
    assert [*told] == [second, first]
    assert told[first].aliases == (CHAMPION,)
    assert told[second].aliases == (CHALLENGER,)
    assert told[second].bundle_version == "b2"
    assert LINEAGE.items() <= told[second].lineage.items()
    assert sorted(e.kind for e in told[second].evidence) == ["canary", "canary", "evaluation"]
    assert told[second].evidence[-1] == better


def test_the_worker_brings_bundles_and_takes_evidence(registry: Registry, tmp_path: Path) -> None:
    """Another machine's served directory, of the same registry."""
    there = Registry(tmp_path / "there", tracking_uri=registry.store.uri)
    watch = RegistryWatch(there, lambda: NOW_S + 9, promotes=GateSettings())
    third = record(registry, "b3", tmp_path)
    assert watch.step().installed == (CHAMPION, CHALLENGER)
    assert (serves(there), there.served.bundle(CHALLENGER)) == (
        "b1",
        load_bundle(there.served.directory(CHALLENGER)),
    )
    assert watch.step().installed == ()
    (there.champion_directory / "policy.onnx").write_bytes(b"damaged")
    assert watch.step().installed == (CHAMPION,), "a damaged bundle is mended"

    registry.record_evidence(third, found("evaluation", "b3", "b1"))
    leave_evidence(there.served.root, found("canary", "b3", "b1", "no_worse"))
    leave_evidence(there.served.root, found("canary", "nobody", "b1"))
    looked = watch.step()
    assert (looked.recorded, looked.promoted) == (1, third)
    assert serves(there) == "b3"
    assert waiting_evidence(there.served.root) == []
    assert registry.evidence(third)[-1].kind == "canary"
    back = there.served.bundle(PREVIOUS)
    assert back is not None
    assert back.version == "b1"


def test_while_the_registry_is_down_all_goes_on_and_rollback_works(
    server: MlflowServer, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    registry = Registry(tmp_path / "mlruns", tracking_uri=server.uri)
    gates, watch = GateSettings(), RegistryWatch(registry, lambda: NOW_S + 50)
    versions = [record(registry, name, tmp_path) for name in ("c1", "c2")]
    for at_s, version in enumerate(versions):
        promote(
            registry,
            version,
            gates=gates,
            by="me",
            now_unix_s=NOW_S + 20 + at_s,
            override="for the test of an outage",
        )
    assert serves(registry) == "c2"
    server.stop()
    try:
        with caplog.at_level(logging.WARNING, "steersman.registry"):
            assert "does not answer" in watch.step().problem
            assert "does not answer" in watch.step().problem
        assert caplog.text.count("what serves goes on serving") == 1, "told once"
        assert serves(registry) == "c2"
        done = roll_back(registry, by="me", reason="pager", now_unix_s=NOW_S + 30)
        assert "does not answer" in done.problem
        assert "\n" not in done.problem
        assert serves(registry) == "c1"
    finally:
        server.start()
    assert watch.step().problem == ""
    assert serves(registry) == "c1", "the registry's older word does not undo it"
    assert registry.version_of(CHAMPION) == versions[0]
