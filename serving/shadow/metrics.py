"""The metrics of shadow mode, part of the router's page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


class ShadowMetrics:
    """Labels: `challenger` is the directory as configured."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.loads = Counter(
            "steersman_shadow_bundle_loads",
            "Challengers' bundles, loaded or refused",
            ["challenger", "result"],
            registry=registry,
        )
        self.info = Gauge(
            "steersman_shadow_info",
            "1 for every challenger that looks on",
            ["challenger", "version"],
            registry=registry,
        )
        self.scored = Counter(
            "steersman_shadow_scored",
            "Decisions scored: same or other choice",
            ["challenger", "choice"],
            registry=registry,
        )
        self.errors = Counter(
            "steersman_shadow_errors",
            "Decisions on which a challenger failed",
            ["challenger"],
            registry=registry,
        )
