"""Replicas listed in a YAML file that somebody, or something, rewrites."""

from __future__ import annotations

import asyncio
from pathlib import Path

from pydantic import Field

from steersman.serving.backend_settings import BackendSettings
from steersman.serving.discovery.settings import FileSource
from steersman.serving.discovery.source import DiscoveryError, Tell
from steersman.traces.errors import ConfigError
from steersman.traces.settings import Settings, parse_settings, read_yaml


class BackendFile(Settings):
    """A file of replicas: the list itself, or a mapping with it. An empty file is refused, since that
    is what a writer that failed leaves; `backends: []` says that there are none."""

    backends: tuple[BackendSettings, ...] = Field(description="The replicas.")


class FileWatch:
    """The control loop of one file. A file that is missing or wrong changes nothing."""

    def __init__(self, settings: FileSource, tell: Tell) -> None:
        self.name = f"file {settings.path}"
        self._settings = settings
        self._path = Path(settings.path)
        self._tell = tell
        self._seen: tuple[int, int, int] | None = None

    @property
    def retry_s(self) -> float:
        """Pause after a failure."""
        return self._settings.interval_s

    async def look(self) -> float:
        """Read the file if it is another one than at the last look; returns the pause.

        Raises:
            DiscoveryError: it cannot be read, or is not a list of backends.
        """
        try:
            status = self._path.stat()
        except OSError as error:
            self._seen = None
            raise DiscoveryError(f"{self._path}: {error.strerror}; write a list of backends") from None
        signature = status.st_ino, status.st_mtime_ns, status.st_size
        if signature != self._seen:
            try:
                backends = await asyncio.to_thread(read_backends, self._path)
            except ConfigError as error:
                raise DiscoveryError(str(error)) from None
            self._tell(backends)
            self._seen = signature
        return self._settings.interval_s


def read_backends(path: Path) -> tuple[BackendSettings, ...]:
    """The replicas a file lists.

    Raises:
        ConfigError: it is not a list of backends, or names one twice.
    """
    values = read_yaml(path)
    if isinstance(values, list):
        values = {"backends": values}
    backends = parse_settings(values, BackendFile, source=str(path)).backends
    names = [backend.replica_id for backend in backends]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ConfigError(f"{path}: two backends are called '{twice}'; give each its own 'id'")
    return backends
