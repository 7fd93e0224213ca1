"""The bundles on disk from which routers serve, and which versions of the registered model they are.

::

    served/
    ├── champion/     the promoted bundle
    ├── challenger/   the bundle to be tried by shadow and canary (optional)
    ├── previous/     the champion before; `steersman rollback` needs nothing else
    └── served.json   which versions these are; and a rollback that the registry has not heard of

Routers only read the bundles. They hold what serves even while the registry is down, and so does a
rollback: it is done here first, and told to the registry when that answers again.
"""

from __future__ import annotations

import json
import os
import tempfile
from dataclasses import asdict, dataclass, field
from pathlib import Path

from steersman.predictors.bundle import MANIFEST, Bundle, copy_bundle, load_bundle
from steersman.traces.errors import ArtifactError

CHAMPION = "champion"
CHALLENGER = "challenger"
PREVIOUS = "previous"
RECORD = "served.json"


@dataclass(frozen=True)
class ServedRecord:
    """The contents of `served.json`."""

    versions: dict[str, str] = field(default_factory=dict)
    """Directory → version of the registered model."""
    untold: str = ""
    """Version that was rolled back to while the registry could not be told."""


class ServedDirectories:
    """Reads and replaces them. One process at a time changes them; any number read.

    Args:
        root: the `served` directory; made when something is first written.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def directory(self, name: str) -> Path:
        """Of one bundle; it may not exist yet."""
        return self.root / name

    def bundle(self, name: str) -> Bundle | None:
        """One of them, verified; None if there is none.

        Raises:
            ArtifactError: it is damaged.
        """
        return load_bundle(self.root / name) if (self.root / name / MANIFEST).is_file() else None

    def record(self) -> ServedRecord:
        """What `served.json` says; nothing of a file that is missing or damaged, so that it is written
        anew."""
        try:
            values = json.loads((self.root / RECORD).read_bytes())
            versions = {str(name): str(version) for name, version in values["versions"].items()}
            return ServedRecord(versions, str(values.get("untold", "")))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return ServedRecord()

    def install(self, name: str, bundle: Bundle, version: str) -> Bundle:
        """Serve this bundle from there; a champion that is replaced by another becomes `previous`.

        Raises:
            ArtifactError: the directory cannot be written.
        """
        record = self.record()
        versions = dict(record.versions)
        if name == CHAMPION and versions.get(CHAMPION, version) != version:
            self._keep_previous(versions)
        served = copy_bundle(bundle, self.root / name)
        versions[name] = version
        self._write(ServedRecord(versions, record.untold if name != CHAMPION else ""))
        return served

    def roll_back(self) -> tuple[Bundle, str]:
        """Champion and previous change places; the registry is still to be told.

        Returns:
            The bundle that serves now, and its model version.

        Raises:
            ArtifactError: there is no previous champion.
        """
        record = self.record()
        version = record.versions.get(PREVIOUS)
        previous = self.bundle(PREVIOUS)
        if version is None or previous is None:
            raise ArtifactError(
                f"{self.root / PREVIOUS}: no champion before this one is kept here; name a version to "
                "promote with 'steersman promote VERSION'"
            )
        versions = dict(record.versions)
        self._keep_previous(versions)
        served = copy_bundle(previous, self.root / CHAMPION)
        versions[CHAMPION] = version
        self._write(ServedRecord(versions, untold=version))
        return served, version

    def told(self) -> None:
        """The registry knows of the rollback."""
        self._write(ServedRecord(self.record().versions))

    def _keep_previous(self, versions: dict[str, str]) -> None:
        try:
            champion = self.bundle(CHAMPION)
        except ArtifactError:
            champion = None  # nobody wants a damaged one back
        if champion is not None and CHAMPION in versions:
            copy_bundle(champion, self.root / PREVIOUS)
            versions[PREVIOUS] = versions[CHAMPION]

    def _write(self, record: ServedRecord) -> None:
        write_atomically(self.root / RECORD, json.dumps(asdict(record), indent=2).encode() + b"\n")


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a small file whole: a reader sees the old one or the new one, also after a crash.

    Raises:
        ArtifactError: it cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(scratch).chmod(0o644)
            Path(scratch).replace(path)
        except BaseException:
            Path(scratch).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ArtifactError(
            f"{path}: cannot be written ({error.strerror}); give a writable directory"
        ) from None
