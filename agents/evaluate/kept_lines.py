"""A file that what is known is added to, entry by entry, so that long work can be interrupted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from steersman.traces.errors import ConfigError


class KeptLines:
    """JSON lines. A line that was cut short when a run was killed is passed over.

    Args:
        path: made if it is missing.
        called: what errors call the file.

    Raises:
        ConfigError: the file cannot be read or written.
    """

    def __init__(self, path: Path, called: str) -> None:
        self._path = path
        self._called = called
        self.entries: list[Any] = []
        """What was there when it was opened."""
        try:
            data = path.read_bytes() if path.exists() else b""
            with path.open("ab") as file:  # now, not when hours have been played
                if data and not data.endswith(b"\n"):
                    file.write(b"\n")
        except OSError as error:
            raise ConfigError(
                f"{called} '{path}': {error.strerror}; give a file of yours, in a folder that exists"
            ) from None
        for line in data.splitlines():
            try:
                self.entries.append(json.loads(line))
            except ValueError:
                continue

    def add(self, entry: dict[str, Any]) -> None:
        """Write one more down.

        Raises:
            ConfigError: it cannot be written.
        """
        try:
            with self._path.open("ab") as file:
                file.write(json.dumps(entry).encode() + b"\n")
        except OSError as error:
            raise ConfigError(
                f"{self._called} '{self._path}': {error.strerror}; make room for it"
            ) from None
