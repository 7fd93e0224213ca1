"""Shadow mode, put together from the router's settings."""

from __future__ import annotations

from steersman.serving.config import RouterSettings
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.outcome_log import Overflows, opinions_writer
from steersman.serving.shadow.shadow import Shadow
from steersman.serving.shadow.watch import ShadowWatch


def open_shadow(
    settings: RouterSettings,
    metrics: RouterMetrics,
    clock: Clock,
    overflows: Overflows | None = None,
) -> tuple[Shadow, ShadowWatch] | tuple[None, None]:
    """The shadow and its watch; None and None where it is not asked for.

    Raises:
        ConfigError: its log's directory cannot be used.
    """
    options = settings.shadow
    if not options.enabled:
        return None, None
    log = opinions_writer(settings, overflows)
    shadow = Shadow(options, log, metrics, clock)
    watch = ShadowWatch(shadow, options, settings.guard, metrics)
    metrics.watch_count("shadow_dropped", "Decisions nobody scored: too many", lambda: shadow.dropped)
    metrics.watch_value("shadow_queued", "Decisions to be scored", lambda: float(shadow.queued))
    metrics.watch_count("shadow_log_dropped", "Opinions lost", lambda: log.dropped)
    return shadow, watch
