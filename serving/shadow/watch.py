"""The control loop that takes challengers in when their bundles appear, and lets them go again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path

from steersman.agents.guard import GuardSettings
from steersman.agents.shadow.challenger import Challenger
from steersman.predictors.bundle import Signature, bundle_signature, load_bundle
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shadow.settings import ShadowSettings
from steersman.serving.shadow.shadow import Shadow
from steersman.traces.errors import ArtifactError

logger = logging.getLogger("steersman.serving")


@dataclass
class _Watched:
    directory: str
    seen: Signature | None = None


class ShadowWatch:
    """Loads a challenger's bundle when it appears or changes; one that is refused changes nothing."""

    name = "shadow watch"

    def __init__(
        self, shadow: Shadow, settings: ShadowSettings, guard: GuardSettings, metrics: RouterMetrics
    ) -> None:
        self._shadow = shadow
        self._settings = settings
        self._guard = guard
        self._metrics = metrics
        self._watched = [_Watched(directory) for directory in settings.challengers]

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Look at every directory."""
        for watched in self._watched:
            signature = bundle_signature(watched.directory)
            if signature == watched.seen:
                continue
            watched.seen = signature
            if signature is None:
                self._replace(watched.directory, None)
            else:
                await self._load(watched.directory)
        return self._settings.watch_interval_s

    async def _load(self, directory: str) -> None:
        try:
            challenger = await asyncio.to_thread(self._read, directory)
        except ArtifactError as error:
            self._metrics.shadow.loads.labels(directory, "refused").inc()
            before = self._shadow.challengers.get(directory)
            stays = f"{before.version} goes on looking on" if before else "nobody looks on"
            logger.warning("challenger refused: %s; %s", error, stays)
        else:
            self._metrics.shadow.loads.labels(directory, "loaded").inc()
            self._replace(directory, challenger)

    def _read(self, directory: str) -> Challenger:
        return Challenger(load_bundle(Path(directory)), self._guard)

    def _replace(self, directory: str, challenger: Challenger | None) -> None:
        others = dict(self._shadow.challengers)
        before = others.pop(directory, None)
        if before is not None:
            with contextlib.suppress(KeyError):
                self._metrics.shadow.info.remove(directory, before.version)
        if challenger is not None:
            others[directory] = challenger
            self._metrics.shadow.info.labels(directory, challenger.version).set(1)
            logger.info("challenger %s looks on, from %s", challenger.version, directory)
        elif before is not None:
            logger.info("challenger %s looks on no more: %s is gone", before.version, directory)
        self._shadow.challengers = others
