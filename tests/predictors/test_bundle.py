"""Bundles: written whole, read whole, and verified."""

from __future__ import annotations

import json
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from steersman.predictors.bundle import Bundle, load_bundle, write_bundle
from steersman.traces.errors import ArtifactError
from tests.predictors.graphs import FEATURES, ROWS, double_model

CREATED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def write(directory: Path, files: dict[str, bytes] | None = None, version: str = "v1") -> Bundle:
    return write_bundle(
        directory,
        {"double.onnx": double_model()} if files is None else files,
        version=version,
        code_version="0.1.0",
        created=CREATED,
        trained_on={"trace": "azure-chat", "seed": 7},
    )


def edit_manifest(directory: Path, **changes: Any) -> None:
    path = directory / "bundle.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_what_was_written_is_read(tmp_path: Path) -> None:
    written = write(tmp_path / "served" / "champion")
    bundle = load_bundle(tmp_path / "served" / "champion")
    assert bundle == written
    assert bundle.version == "v1"
    assert bundle.manifest.created == CREATED
    assert bundle.manifest.trained_on == {"trace": "azure-chat", "seed": 7}
    model = bundle.model("double.onnx", kind="double", features=FEATURES)
    assert model is not None
    assert np.array_equal(model.run({"features": ROWS})[0], ROWS * 2)
    assert bundle.model("policy.onnx", kind="policy", features=()) is None


def test_a_new_bundle_replaces_the_old_one_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write(tmp_path / "champion", {"double.onnx": double_model(), "notes.txt": b"old"})
    write(tmp_path / "champion", version="v2")
    bundle = load_bundle(tmp_path / "champion")
    assert bundle.version == "v2"
    assert sorted(bundle.contents) == ["double.onnx"]
    assert [path.name for path in tmp_path.iterdir()] == ["champion"]


def test_readers_see_the_old_bundle_or_the_new_one(tmp_path: Path) -> None:
    directory = tmp_path / "champion"
    write(directory, {"one": b"0" * 1000, "two": b"0"}, version="0")
    done = threading.Event()
    seen: list[Bundle] = []
    failures: list[Exception] = []

    def read() -> None:
        while not done.is_set():
            try:
                seen.append(load_bundle(directory))
            except ArtifactError as error:
                failures.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for i in range(1, 60):
        write(directory, {"one": str(i % 10).encode() * 1000, "two": str(i).encode()}, version=str(i))
    done.set()
    reader.join()
    assert all(bundle.contents["two"] == bundle.version.encode() for bundle in seen)
    assert failures == []
    assert len(seen) > 10


def test_a_file_system_that_cannot_swap_is_served_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("steersman.predictors.bundle._exchange", lambda one, other: False)
    write(tmp_path / "champion")
    write(tmp_path / "champion", version="v2")
    assert load_bundle(tmp_path / "champion").version == "v2"
    assert [path.name for path in tmp_path.iterdir()] == ["champion"]


def test_a_missing_bundle_says_how_to_make_one(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no bundle here.*steersman train"):
        load_bundle(tmp_path / "none")
    with pytest.raises(ArtifactError, match="no bundle here"):
        load_bundle(tmp_path)


def test_a_file_is_no_bundle(tmp_path: Path) -> None:
    (tmp_path / "champion").write_text("x")
    with pytest.raises(ArtifactError, match="cannot be read"):
        load_bundle(tmp_path / "champion")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "b")
    (tmp_path / "b" / "double.onnx").unlink()
    with pytest.raises(ArtifactError, match=r"'double\.onnx' is missing"):
        load_bundle(tmp_path / "b")


def test_a_changed_file_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "b")
    path = tmp_path / "b" / "double.onnx"
    path.write_bytes(path.read_bytes() + b"\0")
    with pytest.raises(ArtifactError, match=r"double\.onnx: SHA-256"):
        load_bundle(tmp_path / "b")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not valid JSON"),
        ("[]", "expected a mapping"),
        ('{"format": 2}', "format 2, this version reads 1"),
        ('{"format": 1}', "missing key 'version'"),
    ],
)
def test_a_malformed_manifest_is_refused(tmp_path: Path, text: str, reason: str) -> None:
    write(tmp_path / "b")
    (tmp_path / "b" / "bundle.json").write_text(text)
    with pytest.raises(ArtifactError, match=reason):
        load_bundle(tmp_path / "b")


@pytest.mark.parametrize("name", ["../secret", "a/b", "", "..", "bundle.json"])
def test_names_that_lead_elsewhere_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ArtifactError, match="plain file name"):
        write(tmp_path / "b", {name: b"x"})
    write(tmp_path / "c")
    edit_manifest(tmp_path / "c", files={name: "0" * 64})
    with pytest.raises(ArtifactError, match="plain file name"):
        load_bundle(tmp_path / "c")


def test_an_unwritable_place_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="cannot be written"):
        write(tmp_path / "file" / "b")


def test_a_corrupt_model_in_a_sound_bundle_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "b", {"double.onnx": b"nonsense"})
    bundle = load_bundle(tmp_path / "b")
    with pytest.raises(ArtifactError, match="not a readable ONNX model"):
        bundle.model("double.onnx", kind="double", features=FEATURES)
