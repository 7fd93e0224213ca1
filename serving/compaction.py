"""The control loop that has closed segments of the outcome log compacted.

The work is done by a process of its own at the lowest priority, `steersman trace compact`: it alone
imports Arrow, and it ends when all is done. Whatever happens to it, the log stays whole
(`traces/outcome_compaction.py`); the router counts, and tries again later.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Sequence
from pathlib import Path

import orjson

from steersman.serving.config import OutcomeLogSettings
from steersman.serving.helper import Helper, launch
from steersman.serving.metrics import RouterMetrics
from steersman.traces.outcome_segments import needs_compaction, size_bytes

logger = logging.getLogger("steersman.serving")

CHECK_S = 5.0
"""Time between two looks for closed segments."""
BUSY_S = 0.5
"""While the process works."""
PATIENCE_S = 900.0
"""A process that takes longer is killed."""
MOST_PAUSE_S = 600.0
"""Failures double the pause up to this."""


def compaction_command(settings: OutcomeLogSettings) -> list[str]:
    """How the process is started."""
    return [
        *(sys.executable, "-m", "steersman", "trace", "compact", settings.directory),
        *("--total-bytes", str(settings.total_bytes), "--segment-bytes", str(settings.segment_bytes)),
        *("--nice", "19", "--json", "--exit-with-stdin"),
    ]


class CompactionLoop:
    """Starts the process when there is something to compact, and watches it.

    Args:
        settings: of the log.
        metrics: told how it goes.
        command: of the process; it answers a `Compacted` as JSON on standard output.
    """

    name = "outcome log compaction"

    def __init__(
        self,
        settings: OutcomeLogSettings,
        metrics: RouterMetrics,
        command: Sequence[str] | None = None,
    ) -> None:
        self._directory = Path(settings.directory)
        self._metrics = metrics
        self.command = list(command or compaction_command(settings))
        self.helper: Helper | None = None
        """At work now."""
        self._failures = 0
        self._bytes = 0
        metrics.watch_value("outcome_log_bytes", "Size on disk", lambda: float(self._bytes))

    async def step(self, now_s: float) -> float:
        """Look, start, watch or reap; returns the pause."""
        if self.helper is not None:
            return self._watch(self.helper, now_s)
        self._bytes = await asyncio.to_thread(size_bytes, self._directory)
        if not await asyncio.to_thread(needs_compaction, self._directory):
            return CHECK_S
        try:
            self.helper = await asyncio.to_thread(launch, self.command, now_s)
        except OSError as error:
            return self._failed(f"the process cannot be started: {error}")
        return BUSY_S

    def close(self) -> None:
        """The router ends."""
        if self.helper is not None:
            self.helper.close()
            self.helper = None

    def _watch(self, helper: Helper, now_s: float) -> float:
        status = helper.process.poll()
        if status is None:
            if now_s - helper.began_s <= PATIENCE_S:
                return BUSY_S
            self.close()
            return self._failed(f"killed after {PATIENCE_S:g} s")
        said, answer = helper.last_complaint(), helper.read_answer()
        self.close()
        if status != 0:
            return self._failed(f"the process ended with status {status}: {said}")
        try:
            records = int(orjson.loads(answer)["records"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            return self._failed(f"the process's answer is no report: {error}")
        self._failures = 0
        self._metrics.compactions.labels("done").inc()
        self._metrics.compacted_records.inc(records)
        return BUSY_S

    def _failed(self, why: str) -> float:
        self._failures += 1
        self._metrics.compactions.labels("failed").inc()
        logger.warning("the outcome log in %s is not compacted: %s", self._directory, why)
        return min(CHECK_S * 2.0**self._failures, MOST_PAUSE_S)
