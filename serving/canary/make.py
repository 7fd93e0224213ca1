"""A router's canary from its settings."""

from __future__ import annotations

import time
from pathlib import Path

from steersman.serving.canary.canary import Canary
from steersman.serving.canary.challenger import Challenger
from steersman.serving.canary.metrics import CanaryMetrics
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.store import CanaryStore, FileStore, SharedStore
from steersman.serving.config import RouterSettings
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.models import ServedModels
from steersman.serving.shared.server import SharedServer
from steersman.traces.errors import ConfigError


def make_canary(
    settings: RouterSettings,
    champion: ServedModels,
    shared: SharedServer | None,
    metrics: RouterMetrics,
    clock: Clock,
) -> Canary | None:
    """None where none is configured. Reads and writes nothing yet.

    Raises:
        ConfigError: the challenger's policy or one of its options is wrong.
    """
    options = settings.canary
    if not options.enabled:
        return None
    if options.challenger.policy is not None:  # a misspelt name is found now
        guard = options.challenger.guard or settings.guard
        ServedModels(options.challenger.policy, guard, RouterMetrics(), clock)
    told = CanaryMetrics(metrics.registry)
    challenger = Challenger(settings, told, clock)
    store = make_store(options, shared)
    return Canary(settings, champion, challenger, store, told, wall=time.time)


def make_store(options: CanarySettings, shared: SharedServer | None) -> CanaryStore:
    """Where the state is: on the shared server if there is one, with a copy in the file.

    Raises:
        ConfigError: there is neither.
    """
    file = FileStore(Path(options.state_file)) if options.state_file else None
    if shared is not None:
        return SharedStore(shared, file)
    if file is None:
        raise ConfigError("canary.state_file is empty, and so is shared.url; set one of them")
    return file
