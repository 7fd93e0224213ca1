"""A bundle: the directory of models that are trained, promoted and served together.

::

    champion/
    ├── bundle.json    format, version, created, code_version, trained_on, files {name: SHA-256}
    ├── length.onnx    predictors/length.py
    ├── latency.onnx   predictors/latency.py    (optional)
    └── policy.onnx    the learned policy       (optional)

It is written beside its place and moved there whole, and read into memory whole with every checksum
verified: a reader sees the old bundle or the new one, never a mixture, and what was verified is what
is used. (Where the file system cannot swap two directories in one step, a reader may for an instant
find none.)
"""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

from pydantic import Field

from steersman.predictors.onnx_model import OnnxModel, check_sha256
from steersman.traces.errors import ArtifactError, ConfigError
from steersman.traces.settings import Settings, parse_settings

FORMAT = 1
MANIFEST = "bundle.json"
LENGTH_FILE = "length.onnx"
LATENCY_FILE = "latency.onnx"
POLICY_FILE = "policy.onnx"

_ATTEMPTS = 3
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2


class Manifest(Settings):
    """The contents of `bundle.json`."""

    format: int = Field(description="Layout of the bundle; this version writes and reads 1.")
    version: str = Field(min_length=1, description="Name of this bundle in logs and metrics.")
    created: datetime = Field(description="When it was written, with time zone.")
    code_version: str = Field(description="Version of Steersman that trained it.")
    trained_on: dict[str, Any] = Field(
        default_factory=dict, description="What it was trained on: trace, fingerprint, scenarios, seed."
    )
    files: dict[str, str] = Field(description="Name of every file, and its SHA-256 in hexadecimal.")


@dataclass(frozen=True)
class Bundle:
    """A bundle in memory, verified. Immutable."""

    directory: Path
    manifest: Manifest
    contents: Mapping[str, bytes]
    """Every file named by the manifest."""

    @property
    def version(self) -> str:
        """Name of this bundle."""
        return self.manifest.version

    def model(self, name: str, *, kind: str, features: tuple[str, ...]) -> OnnxModel | None:
        """One of its models, checked and ready; None if the bundle has no such file.

        Raises:
            ArtifactError: it is there and wrong; see `OnnxModel.load`.
        """
        data = self.contents.get(name)
        if data is None:
            return None
        return OnnxModel.parse(data, kind=kind, features=features, source=str(self.directory / name))


Signature = tuple[int, int, int]


def bundle_signature(directory: str | Path) -> Signature | None:
    """Changes when the bundle there is replaced; None where there is none."""
    try:
        status = (Path(directory) / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def load_bundle(directory: str | Path) -> Bundle:
    """Read a bundle and verify every checksum. Safe while another process replaces it.

    Raises:
        ArtifactError: there is no bundle, it is of another format, or a file is missing or changed.
    """
    directory = Path(directory)
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return _read(directory)
        except FileNotFoundError as error:
            # Replaced between two of our reads: the new one is in its place by now.
            if attempt == _ATTEMPTS:
                raise _missing(directory, error) from None
        except OSError as error:
            raise ArtifactError(
                f"{directory}: cannot be read ({error.strerror}); check the directory"
            ) from None
    raise AssertionError("unreachable")


def write_bundle(
    directory: str | Path,
    files: Mapping[str, bytes],
    *,
    version: str,
    code_version: str,
    created: datetime,
    trained_on: Mapping[str, Any] | None = None,
) -> Bundle:
    """Write a bundle to `directory`, replacing what is there in one move.

    Args:
        files: plain file names and their contents.
        version, code_version, created, trained_on: see `Manifest`.

    Raises:
        ArtifactError: a name is not a plain file name, or the directory cannot be written.
    """
    directory = Path(os.path.abspath(directory))  # noqa: PTH100 (no link resolved: it would be replaced)
    manifest = Manifest(
        format=FORMAT,
        version=version,
        created=created,
        code_version=code_version,
        trained_on=dict(trained_on or {}),
        files={name: sha256(data).hexdigest() for name, data in files.items()},
    )
    _check_names(manifest, directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        scratch = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", dir=directory.parent))
        try:
            _write_files(scratch / "new", manifest, files)
            _move_into_place(scratch, directory)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    except OSError as error:
        raise ArtifactError(
            f"{directory}: cannot be written ({error.strerror}); give a writable directory"
        ) from None
    return Bundle(directory, manifest, dict(files))


def copy_bundle(bundle: Bundle, directory: Path) -> Bundle:
    """Write a bundle elsewhere as it is.

    Raises:
        ArtifactError: the directory cannot be written.
    """
    manifest = bundle.manifest
    return write_bundle(
        directory,
        bundle.contents,
        version=manifest.version,
        code_version=manifest.code_version,
        created=manifest.created,
        trained_on=manifest.trained_on,
    )


def _read(directory: Path) -> Bundle:
    # Everything is opened relative to one directory handle, so that a bundle moved away meanwhile is
    # still read whole.
    handle = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        manifest = _parse_manifest(_read_file(handle, MANIFEST), directory)
        contents = {}
        for name, expected in manifest.files.items():
            contents[name] = _read_file(handle, name)
            check_sha256(contents[name], expected, source=str(directory / name))
    finally:
        os.close(handle)
    return Bundle(directory, manifest, contents)


def _read_file(handle: int, name: str) -> bytes:
    with open(os.open(name, os.O_RDONLY, dir_fd=handle), "rb") as file:  # noqa: PTH123
        return file.read()


def _parse_manifest(data: bytes, directory: Path) -> Manifest:
    source = str(directory / MANIFEST)
    try:
        parsed = json.loads(data)
    except ValueError:
        raise ArtifactError(f"{source}: not valid JSON; write the bundle anew") from None
    if isinstance(parsed, dict) and parsed.get("format", FORMAT) != FORMAT:
        raise ArtifactError(
            f"{source}: format {parsed['format']!r}, this version reads {FORMAT}; "
            "use the version of Steersman that wrote it, or train anew"
        )
    try:
        manifest = parse_settings(parsed, Manifest, source=source)
    except ConfigError as error:
        raise ArtifactError(str(error)) from None
    _check_names(manifest, directory)
    return manifest


def _check_names(manifest: Manifest, directory: Path) -> None:
    for name in manifest.files:
        if name in {"", ".", "..", MANIFEST} or "/" in name or "\0" in name:
            raise ArtifactError(f"{directory}: '{name}' is not a plain file name; rename it")


def _missing(directory: Path, error: FileNotFoundError) -> ArtifactError:
    if not (directory / MANIFEST).is_file():
        return ArtifactError(
            f"{directory}: no bundle here ({MANIFEST} is missing); make one with 'steersman train'"
        )
    return ArtifactError(f"{directory}: '{error.filename}' is missing; write the bundle anew")


def _write_files(directory: Path, manifest: Manifest, files: Mapping[str, bytes]) -> None:
    directory.mkdir(mode=0o755)
    for name, data in {**files, MANIFEST: manifest.model_dump_json(indent=2).encode() + b"\n"}.items():
        with (directory / name).open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    _sync(directory)


def _move_into_place(scratch: Path, directory: Path) -> None:
    if not _exchange(scratch / "new", directory):
        with suppress(FileNotFoundError):
            directory.rename(scratch / "old")
        (scratch / "new").rename(directory)
    _sync(directory.parent)


def _exchange(one: Path, other: Path) -> bool:
    """Swap two paths in one step (Linux `renameat2`); False where that is not possible."""
    try:
        renameat2 = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    done: int = renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE)
    return done == 0


def _sync(directory: Path) -> None:
    handle = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
