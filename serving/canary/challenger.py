"""The challenger's models and policies, warm in memory beside the champion's."""

from __future__ import annotations

import hashlib
import logging
from pathlib import Path

from steersman.predictors.bundle import MANIFEST, bundle_signature
from steersman.serving.canary.metrics import CanaryMetrics
from steersman.serving.canary.settings import ChallengerSettings
from steersman.serving.config import RouterSettings
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.models import ServedModels, load_models
from steersman.traces.errors import SteersmanError

logger = logging.getLogger("steersman.serving")


class Challenger:
    """Loads it, and again when it changes. Everything here is off the event loop's way but `look`.

    Args:
        settings: of the router: what the challenger does not bring itself is the router's own.
        metrics: count what is refused.
        clock: the router's.
    """

    def __init__(self, settings: RouterSettings, metrics: CanaryMetrics, clock: Clock) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._seen: object = None
        self.models: ServedModels | None = None
        """Ready to decide; None while there is none, or it was refused."""
        self.version = ""
        """Of what is ready; empty for nothing."""

    def apply(self, settings: RouterSettings) -> None:
        """From the next look on."""
        self._settings = settings

    def look(self) -> bool:
        """Load it if it is another one than before; what was loaded stays if the new one is refused.

        Returns:
            Whether another one is ready now.
        """
        seen = self._signature()
        if seen == self._seen:
            return False
        self._seen = seen
        if seen is None:
            return False  # gone: what was loaded can still finish
        try:
            models, version = self._load()
        except SteersmanError as error:
            self._metrics.refused.inc()
            logger.warning("the challenger is refused: %s", error)
            return False
        changed = version != self.version
        self.models, self.version = models, version
        return changed

    def _signature(self) -> object:
        """Changes whenever the challenger does; None without any."""
        wanted = self._settings.canary.challenger
        directory = wanted.bundle or self._settings.bundle.directory
        bundle = bundle_signature(directory) if directory else None
        if bundle is None and wanted.bundle:
            return None
        return (wanted, self._settings.policy, self._settings.guard, directory, bundle)

    def _load(self) -> tuple[ServedModels, str]:
        """Ready to decide.

        Raises:
            SteersmanError: the bundle, the policy or one of its options is wrong.
        """
        settings, wanted = self._settings, self._settings.canary.challenger
        # Metrics of its own, which nobody shows: gauges of the same names are the champion's.
        models = ServedModels(
            wanted.policy or settings.policy,
            wanted.guard or settings.guard,
            RouterMetrics(),
            self._clock,
        )
        directory = wanted.bundle or settings.bundle.directory
        if wanted.bundle or (directory and (Path(directory) / MANIFEST).is_file()):
            models.serve(load_models(Path(directory), settings.bundle.latency_budget_ms))
        return models, models.version * bool(wanted.bundle) + mark_of(wanted)


def mark_of(challenger: ChallengerSettings) -> str:
    """Tells apart what differs in policy or guard; empty where a bundle alone is tried."""
    if challenger.policy is None and challenger.guard is None:
        return ""
    own = challenger.model_dump_json(include={"policy", "guard"})
    digest = hashlib.sha256(own.encode()).hexdigest()[:8]
    name = "guard" if challenger.policy is None else challenger.policy.name
    return f"+{name}-{digest}"
