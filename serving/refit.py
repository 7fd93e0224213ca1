"""The control loop that has the predictors refitted when they drift (SPEC A6).

The work is done by a process of its own, `steersman train refit`: it alone imports LightGBM, reads the
outcome log, and replaces the bundle if the newest outcomes say that a new model is better; the bundle
watch (`models.py`) then loads it like any other. Whatever happens to that process, the router only
counts it: one that takes too long is killed, and it ends by itself when the router does.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import time
from collections.abc import Sequence
from typing import Any

import orjson

from steersman.predictors.alarm import Alarm
from steersman.serving.config import RouterSettings
from steersman.serving.helper import Helper, launch
from steersman.serving.metrics import RouterMetrics
from steersman.serving.models import ServedModels
from steersman.serving.online import OnlineErrors

logger = logging.getLogger("steersman.serving")

CHECK_S = 1.0
"""Time between two steps."""
MOST_BACKOFF = 16
"""Refits that change nothing double the pause to the next, up to this many times `min_interval_s`."""


def refit_command(settings: RouterSettings) -> list[str]:
    """How the worker is started; `--since` is added."""
    options = settings.refit
    return [
        *(sys.executable, "-m", "steersman", "train", "refit", "--json", "--exit-with-stdin"),
        *("--log", settings.outcome_log.directory, "--bundle", settings.bundle.directory),
        *("--window", str(options.window_outcomes), "--memory-gib", str(options.memory_gib)),
        *("--nice", str(options.nice)),
    ]


class RefitLoop:
    """Starts a refit when it is due, and watches it.

    Args:
        command: of the worker; it answers a report of `agents/refit` as JSON on stdout.
    """

    name = "refit"

    def __init__(
        self,
        settings: RouterSettings,
        errors: OnlineErrors,
        models: ServedModels,
        metrics: RouterMetrics,
        command: Sequence[str] | None = None,
    ) -> None:
        self._settings = settings.refit
        self._errors = errors
        self._models = models
        self._metrics = metrics
        self.command = list(command or refit_command(settings))
        self.worker: Helper | None = None
        """At work now."""
        self._version = models.version
        self._next_s = -float("inf")
        self._began_at = 0
        """Outcomes at the last refit."""
        self._alarm = Alarm(self._settings.min_outcomes)
        self._fruitless = 0

    async def step(self, now_s: float) -> float:
        """Start, watch or reap; returns the pause."""
        if self._version != self._models.version:
            self._version = self._models.version
            self._errors.restart()
        if self.worker is not None:
            self._watch(self.worker, now_s)
        elif self._is_due(now_s):
            await self._start(now_s)
        return CHECK_S

    def close(self) -> None:
        """The router ends."""
        if self.worker is not None:
            self.worker.close()
            self.worker = None

    def _is_due(self, now_s: float) -> bool:
        options, seen = self._settings, self._errors.outcomes
        self._alarm.look(len(self._errors.drifted), seen, time.time())
        if now_s < self._next_s:
            return False
        if self._alarm.since_s is not None:
            return self._alarm.is_due(seen)
        if options.interval_s <= 0.0:
            return False
        if self._next_s == -float("inf"):
            self._next_s = now_s + options.interval_s
            return False
        return seen - self._began_at >= options.min_outcomes

    async def _start(self, now_s: float) -> None:
        command = list(self.command)
        if self._alarm.since_s is not None:
            command += ["--since", f"{self._alarm.since_s:.3f}"]
        self._began_at = self._errors.outcomes
        try:
            self.worker = await asyncio.to_thread(launch, command, now_s)
        except OSError as error:
            self._ended(now_s, "failed", "not_started", f"the worker cannot be started: {error}")

    def _watch(self, worker: Helper, now_s: float) -> None:
        status = worker.process.poll()
        if status is None:
            if now_s - worker.began_s > self._settings.timeout_s:
                self._reap(now_s, "failed", "timeout", f"killed after {self._settings.timeout_s:g} s")
            return
        if status == 0:
            self._report(worker, now_s)
            return
        said = worker.last_complaint()
        reason = "killed" if status < 0 else "error"
        self._reap(now_s, "failed", reason, f"the worker ended with status {status}: {said}")

    def _report(self, worker: Helper, now_s: float) -> None:
        try:
            report: dict[str, Any] = orjson.loads(worker.read_answer())
            replaced = [str(name) for name in report["replaced"]]
            reasons = dict(report["reasons"])
        except (orjson.JSONDecodeError, KeyError, TypeError, ValueError) as error:
            self._reap(now_s, "failed", "bad_answer", f"the worker's answer is no report: {error}")
            return
        said = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        if replaced:
            self._reap(now_s, "replaced", "+".join(replaced), said)
        else:
            self._reap(now_s, "kept", "not_better", said)
        self._alarm.settled(self._began_at, replaced=bool(replaced))
        # Replaced or not: what was found is the best there is, and the next errors are the reference.
        self._errors.restart()

    def _reap(self, now_s: float, result: str, reason: str, said: str) -> None:
        self.close()
        self._ended(now_s, result, reason, said)

    def _ended(self, now_s: float, result: str, reason: str, said: str) -> None:
        self._metrics.refits.labels(result, reason).inc()
        level = logging.WARNING if result == "failed" else logging.INFO
        logger.log(level, "refit: %s (%s): %s", result, reason, said)
        self._fruitless = 0 if result == "replaced" else self._fruitless + 1
        factor = min(2 ** max(self._fruitless - 1, 0), MOST_BACKOFF)
        pause_s = self._settings.min_interval_s * factor
        if self._alarm.since_s is None:
            pause_s = max(pause_s, self._settings.interval_s)
        self._next_s = now_s + pause_s
