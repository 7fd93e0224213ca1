"""The work directory of a retraining: what is done stays done, whatever kills the process.

::

    retraining/
    ├── plan.json            which retraining this is
    ├── stages/<name>/       the files a finished stage has made; a whole directory or none
    ├── practice/            the traffic that the policy practises on
    ├── policy.checkpoint    where the policy's training stands
    └── bundle/              the last challenger
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from steersman.traces.errors import ArtifactError, ConfigError

PLAN = "plan.json"
STAGES = "stages"
PRACTICE = "practice"
CHECKPOINT = "policy.checkpoint"
BUNDLE = "bundle"
_OURS = {PLAN, STAGES, PRACTICE, CHECKPOINT, BUNDLE}

Files = Mapping[str, bytes]


class Work:
    """One work directory.

    Args:
        directory: made if missing; one that holds other things is refused.

    Raises:
        ConfigError: it cannot be written, or is not ours.
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        try:
            directory.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=directory):
                pass
            names = {path.name.removesuffix(".part") for path in directory.iterdir()}
            strange = sorted(name for name in names - _OURS if not name.startswith("."))
        except OSError as error:
            raise ConfigError(
                f"{directory}: cannot be written ({error.strerror}); give a writable work directory"
            ) from None
        if strange:
            raise ConfigError(
                f"{directory}: holds '{strange[0]}', which no retraining made; give an empty one"
            )

    @property
    def checkpoint(self) -> Path:
        """Of the policy's training."""
        return self.directory / CHECKPOINT

    @property
    def bundle(self) -> Path:
        """Of the challenger; stays when the work is done."""
        return self.directory / BUNDLE

    @property
    def practice(self) -> Path:
        """Made if missing."""
        path = self.directory / PRACTICE
        path.mkdir(exist_ok=True)
        return path

    def plan(self) -> dict[str, Any] | None:
        """What is being done here; None: nothing."""
        try:
            plan = json.loads((self.directory / PLAN).read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError):
            return None  # torn by what killed its writer: nothing was done after it
        return plan if isinstance(plan, dict) else None

    def begin(self, plan: Mapping[str, Any]) -> None:
        """Forget what was done before, and do this."""
        self.clear()
        self._write(self.directory / PLAN, json.dumps(dict(plan), indent=1).encode())

    def clear(self) -> None:
        """Forget everything but the bundle."""
        for name in (STAGES, PRACTICE):
            shutil.rmtree(self.directory / name, ignore_errors=True)
        for name in (PLAN, CHECKPOINT):
            (self.directory / name).unlink(missing_ok=True)

    def stage(self, name: str, make: Callable[[], Files]) -> dict[str, bytes]:
        """The files of a stage: those it made before, or those it makes now.

        Raises:
            ArtifactError: they cannot be written.
        """
        home = self.directory / STAGES / name
        if not home.is_dir():
            self._keep(home, make())
        return {
            str(path.relative_to(home)): path.read_bytes()
            for path in sorted(home.rglob("*"))
            if path.is_file()
        }

    def _keep(self, home: Path, files: Files) -> None:
        """All files at once."""
        try:
            home.parent.mkdir(parents=True, exist_ok=True)
            scratch = Path(tempfile.mkdtemp(prefix=".", dir=home.parent))
            for name, data in files.items():
                path = scratch / name
                path.parent.mkdir(parents=True, exist_ok=True)
                self._write(path, data)
            scratch.replace(home)
        except OSError as error:
            raise ArtifactError(f"{home}: cannot be written ({error.strerror}); free the disk") from None

    def _write(self, path: Path, data: bytes) -> None:
        part = path.with_name(path.name + ".part")
        with part.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
