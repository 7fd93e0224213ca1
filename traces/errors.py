"""The errors a user can meet.

::

    SteersmanError
    ├── ConfigError      a YAML file, key or command-line value is wrong
    ├── TraceError       a trace file is wrong; names the file and the row
    ├── ArtifactError    a model artifact is corrupt, mismatched or missing
    └── BackendError     a backend cannot be reached or does not speak the protocol

Every message is one line that names the key, the value and the fix. The command-line tool prints it
and exits with code 2; nothing below the tool catches it to print.
"""

from __future__ import annotations


class SteersmanError(Exception):
    """Something the user can mend. The message says what to change."""


class ConfigError(SteersmanError):
    """A configuration file, key or command-line value is wrong."""


class TraceError(SteersmanError):
    """A trace cannot be read. Carries the place so that tools can point at it."""

    def __init__(self, message: str, *, path: str | None = None, row: int | None = None) -> None:
        place = "" if path is None else f"{path}: " if row is None else f"{path}: row {row}: "
        super().__init__(place + message)
        self.path = path
        self.row = row


class ArtifactError(SteersmanError):
    """A model artifact is corrupt, mismatched or missing."""


class BackendError(SteersmanError):
    """A backend cannot be reached, or answers something that is not the protocol."""
