"""Evidence that a router found, on its way to the registry: small files beside the served bundles."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from steersman.agents.evidence import Evidence
from steersman.agents.served_directories import write_atomically
from steersman.traces.errors import ArtifactError

logger = logging.getLogger("steersman.registry")

_FOLDER = "evidence"


def leave_evidence(root: Path, evidence: Evidence) -> Path:
    """Put it where the registry's worker looks; the same evidence twice is one file.

    Raises:
        ArtifactError: it cannot be written.
    """
    text = evidence.to_json().encode()
    name = f"{int(evidence.made_unix_s):012d}-{hashlib.sha256(text).hexdigest()[:12]}.json"
    path = root / _FOLDER / name
    write_atomically(path, text + b"\n")
    return path


def waiting_evidence(root: Path) -> list[tuple[Path, Evidence]]:
    """What has been left there, the oldest first. A damaged file is set aside as `.bad`."""
    found = []
    for path in sorted((root / _FOLDER).glob("*.json")):
        try:
            found.append((path, Evidence.from_json(path.read_bytes())))
        except (OSError, ArtifactError) as error:
            logger.warning("%s: %s; it is set aside", path, error)
            try:
                path.rename(path.with_suffix(".bad"))
            except OSError as failed:
                logger.warning("%s: cannot be renamed (%s)", path, failed.strerror)
    return found


def forget_evidence(path: Path) -> None:
    """The registry has it."""
    path.unlink(missing_ok=True)
