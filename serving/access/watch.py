"""The key file, read at the start and again whenever it changes."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

from steersman.serving.access.gate import Gate
from steersman.serving.access.settings import AccessSettings, KeyFile
from steersman.serving.metrics import RouterMetrics
from steersman.traces.errors import ConfigError
from steersman.traces.settings import load_settings

logger = logging.getLogger("steersman.serving")


class KeyWatch:
    """A control loop. A file that is missing or wrong leaves the keys as they are, and says so.

    Raises:
        ConfigError: it is so at the start, when there are none yet.
    """

    name = "key file"

    def __init__(self, settings: AccessSettings, gate: Gate, metrics: RouterMetrics) -> None:
        self._path = Path(settings.key_file)
        self._interval_s = settings.interval_s
        self._gate = gate
        self._metrics = metrics
        self._seen = _signature(self._path)
        gate.set_keys(load_settings(self._path, KeyFile))

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Read the file if it is another one than at the last look."""
        signature = await asyncio.to_thread(_signature, self._path)
        if signature != self._seen:
            self._seen = signature
            try:
                keys = await asyncio.to_thread(load_settings, self._path, KeyFile)
            except ConfigError as error:
                self._metrics.key_file_loads.labels("refused").inc()
                logger.warning("the former API keys stay: %s", error)
            else:
                self._gate.set_keys(keys)
                self._metrics.key_file_loads.labels("loaded").inc()
                logger.info("%d API keys from %s", len(keys.keys), self._path)
        return self._interval_s


def _signature(path: Path) -> tuple[int, int, int] | None:
    """Changes when the file does; None while it cannot be looked at."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size
