"""What of a canary is on the metrics page."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge

from steersman.serving.canary.finding import alarm_at, figures_of
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.share import share_of
from steersman.serving.canary.state import CanaryState
from steersman.serving.canary.tally import ARMS, E2E, GUARDS, TTFT

WHATS = ("started", "stage", "rolled_back", "aborted", "promoted", "done")


class CanaryMetrics:
    """Counters of this router, gauges of what all routers know."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, text: str, *labels: str) -> Gauge:
            return Gauge(f"steersman_canary_{name}", text, labels, registry=registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(f"steersman_canary_{name}", text, labels, registry=registry)

        self.requests = counter("requests", "Outcomes of both arms", "arm", "result")
        self.transitions = counter("transitions", "Steps of canaries, by what happened", "what")
        self.refused = counter("refused", "Challengers that could not be loaded")
        self.faults = counter("faults", "Decisions in which the challenger's code failed")
        self.running = gauge("running", "1 while a challenger is tried")
        self.share = gauge("share", "Of the traffic that is the challenger's now")
        self.stage = gauge("stage", "Stage of the canary, from 1; 0 without one")
        self.ready = gauge("ready", "0 while this router cannot serve the challenger that is tried")
        self.alone = gauge("alone", "1 while the canary's state cannot be read or written")
        self.evidence = gauge(
            "evidence", "Evidence that it is worse, as a share of what ends it (logs)", "guard"
        )
        self.p99_ratio = gauge("p99_ratio", "p99 of the challenger over the champion's", "guard")
        self.error_rate = gauge("error_rate", "Share of requests that failed, this stage", "arm")
        self.missed_rate = gauge(
            "missed_rate", "Share of requests that failed or missed an objective, this stage", "arm"
        )
        for what in WHATS:
            self.transitions.labels(what)
        for guard in GUARDS:
            self.evidence.labels(guard).set(0.0)

    def tell(self, state: CanaryState, settings: CanarySettings, share: float) -> None:
        """Show how it stands; `share` is what this router gives it."""
        self.running.set(float(state.running))
        self.stage.set(float(state.stage + 1) if state.running else 0.0)
        self.share.set(share if share_of(state, settings) > 0.0 else 0.0)
        if not state.running:
            return
        figures = figures_of(state)
        for guard in GUARDS:
            evidence = figures.get(f"log_evidence_worse.{guard}", 0.0)
            self.evidence.labels(guard).set(max(evidence, 0.0) / alarm_at(settings))
        for guard in (TTFT, E2E):
            if f"p99_{guard}_ratio" in figures:
                self.p99_ratio.labels(guard).set(figures[f"p99_{guard}_ratio"])
        for arm in ARMS:
            if f"{arm}.error_rate" in figures:
                self.error_rate.labels(arm).set(figures[f"{arm}.error_rate"])
            if f"{arm}.missed_rate" in figures:
                self.missed_rate.labels(arm).set(figures[f"{arm}.missed_rate"])
