"""Shadow mode, put together from the router's settings."""

from __future__ import annotations

from pathlib import Path

from steersman.serving.config import RouterSettings
from steersman.serving.loops import Clock
from steersman.serving.metrics import RouterMetrics
from steersman.serving.shadow.shadow import Shadow
from steersman.serving.shadow.watch import ShadowWatch
from steersman.traces.outcome_log import OutcomeLogWriter
from steersman.traces.shadow_record import DIRECTORY, STEM


def open_shadow(
    settings: RouterSettings, metrics: RouterMetrics, clock: Clock
) -> tuple[Shadow, ShadowWatch] | tuple[None, None]:
    """The shadow and its watch; None and None where it is not asked for.

    Raises:
        ConfigError: its log's directory cannot be used.
    """
    options = settings.shadow
    if not options.enabled:
        return None, None
    log = OutcomeLogWriter(
        Path(settings.outcome_log.directory) / DIRECTORY,
        segment_bytes=options.segment_bytes,
        total_bytes=options.total_bytes,
        flush_interval_s=settings.outcome_log.flush_interval_s,
        stem=STEM,
    )
    shadow = Shadow(options, log, metrics, clock)
    watch = ShadowWatch(shadow, options, settings.guard, metrics)
    metrics.watch_value(
        "shadow_dropped", "Decisions nobody scored: too many", lambda: float(shadow.dropped)
    )
    metrics.watch_value("shadow_queued", "Decisions to be scored", lambda: float(shadow.queued))
    metrics.watch_value("shadow_log_dropped", "Opinions lost", lambda: float(log.dropped))
    return shadow, watch
