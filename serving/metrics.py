"""The router's metrics (SPEC J1): every name is defined here, once, in a registry of the router's own.

Counters and histograms are moved as things happen; gauges of replicas and pools are read from the fleet
when the page is asked for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from steersman.agents.evaluate.statistics import jain_index, max_over_mean
from steersman.predictors import ledger as L
from steersman.predictors.load import load_now
from steersman.serving.labelled import LabelledCounter, LabelledGauge, LabelledHistogram
from steersman.serving.loops import Clock
from steersman.serving.pool import Fleet
from steersman.serving.replica import Replica
from steersman.serving.shadow.metrics import ShadowMetrics
from steersman.traces.schema import Status

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_LATENCY_S = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TPOT_S = (0.002, 0.005, 0.01, 0.015, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0)
_DECISION_S = (1e-4, 2e-4, 3e-4, 5e-4, 7.5e-4, 1e-3, 2e-3, 5e-3, 1e-2, 5e-2, 0.1)


class RouterMetrics:
    """All metrics. Labels take values only from the configuration, never from a client."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry(auto_describe=False)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return LabelledCounter(f"steersman_{name}", text, labels, registry=registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return LabelledHistogram(
                f"steersman_{name}", text, labels, buckets=buckets, registry=registry
            )

        # Ingress.
        self.requests = counter("requests", "Requests by how they ended", "model", "status")
        self.responses = counter("responses", "Responses sent, by HTTP status", "code")
        self.refusals = counter(
            "refusals", "Requests answered by the router itself, by reason", "reason"
        )
        self.in_flight = LabelledGauge(
            "steersman_requests_in_flight", "Requests being served", registry=registry
        )
        self.input_tokens = counter("input_tokens", "Prompt tokens of finished requests", "model")
        self.output_tokens = counter("output_tokens", "Tokens of finished answers", "model")
        self.ttft = histogram("ttft_seconds", "Arrival to first token", _LATENCY_S, "model")
        self.tpot = histogram("tpot_seconds", "Time per output token after the first", _TPOT_S, "model")
        self.e2e = histogram("e2e_seconds", "Arrival to last token", _LATENCY_S, "model")
        # Routing.
        self.decision_seconds = histogram(
            "decision_seconds", "Features, predictions and choice of a request", _DECISION_S
        )
        self.decisions = counter("decisions", "Decisions by the policy that made them", "policy")
        self.fallbacks = counter("fallbacks", "Decisions the learned policy did not make", "reason")
        self.latched = Gauge(
            "steersman_guard_latched", "1 while the fallback serves alone", ["model"], registry=registry
        )
        self.degraded = counter(
            "degraded", "Requests that another model was asked to answer", "model", "by"
        )
        self.retries = counter("retries", "Attempts after the first, by what failed", "reason")
        self.retries_denied = counter("retries_denied", "Retries that the budget did not allow")
        self.hedges = counter(
            "hedges", "Second attempts beside a late one, by what came of them", "result"
        )
        self.hedges_denied = counter(
            "hedges_denied", "Late attempts that got no second one beside them, by why", "reason"
        )
        self.blamed_requests = counter(
            "blamed_requests", "Requests that failed on several replicas, of which none was charged"
        )
        self.queue_depth = Gauge(
            "steersman_queue_depth", "Requests held back", ["model", "class"], registry=registry
        )
        self.queue_wait = histogram(
            "queue_wait_seconds", "Arrival to dispatch of those held back", _LATENCY_S, "model", "class"
        )
        self.queue_shed = counter("queue_shed", "Requests turned away by the queue", "class", "reason")
        # Replicas.
        self.replica_requests = counter(
            "replica_requests", "Requests by the replica that served them last", "replica", "status"
        )
        self.replica_failures = counter(
            "replica_failures", "Failed checks and failed requests of a replica", "replica"
        )
        self.ejections = counter(
            "ejections", "Times a replica was left out although healthy", "replica", "reason"
        )
        self.scrape_failures = counter(
            "scrape_failures", "Scrapes of engine metrics that failed", "replica"
        )
        self.discovery = counter("discovery", "Looks for replicas, by result", "source", "result")
        self.limited = counter(
            "limited", "Requests over a limit, by whose and of what", "scope", "limit"
        )
        self.limits_alone = counter(
            "limits_alone", "Limits decided without the shared server, which did not answer"
        )
        self.affinity = counter("affinity", "Requests of groups, by what came of it", "outcome")
        self.shared_up = Gauge(
            "steersman_shared_up", "1 while the shared server answers", registry=registry
        )
        self.shared_failures = counter("shared_failures", "Questions the shared server left open")
        self.key_file_loads = counter(
            "key_file_loads", "Key files that were loaded or refused", "result"
        )
        # Models and log.
        self.width = Gauge(
            "steersman_prediction_width",
            "Factor on the log of p90 over p50 that outcomes have taught",
            ["model", "target"],
            registry=registry,
        )
        self.bundle_loads = counter("bundle_loads", "Bundles that were loaded or refused", "result")
        self.bundle_ok = Gauge(
            "steersman_bundle_ok", "0 while the newest bundle is refused", registry=registry
        )
        self.bundle_ok.set(1.0)
        self.reloads = counter("config_reloads", "Configurations read again, by result", "result")
        self.reload_ok = Gauge(
            "steersman_config_reload_ok", "0 while the last one was refused", registry=registry
        )
        self.reload_ok.set(1.0)
        self.bundle_info = Gauge(
            "steersman_bundle_info", "1 for the bundle that serves", ["version"], registry=registry
        )
        self.drift_alarms = counter(
            "prediction_drift_alarms", "Times that predictions drifted", "model", "hardware", "target"
        )
        self.compactions = counter(
            "outcome_log_compactions", "Compactions of the outcome log, done or failed", "result"
        )
        self.compacted_records = counter("outcome_log_compacted_records", "Records compacted")
        self.refits = counter(
            "refits", "Refits by what came of them: replaced, kept or failed", "result", "reason"
        )
        self.shadow = ShadowMetrics(registry)

    def forget(self, replica_id: str) -> None:
        """A replica is gone, and so are its counters."""
        with contextlib.suppress(KeyError):
            self.replica_failures.remove(replica_id)
        with contextlib.suppress(KeyError):
            self.scrape_failures.remove(replica_id)
        for reason in ("breaker", "outlier"):
            with contextlib.suppress(KeyError):
                self.ejections.remove(replica_id, reason)
        for status in Status:
            with contextlib.suppress(KeyError):
                self.replica_requests.remove(replica_id, status.value)

    def watch(self, fleet: Fleet, clock: Clock) -> None:
        """Show this fleet's replicas and pools on the page."""
        self.registry.register(_FleetCollector(fleet, clock))

    def watch_value(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a number that somebody else counts."""
        Gauge(f"steersman_{name}", text, registry=self.registry).set_function(value)

    def watch_count(self, name: str, text: str, value: Callable[[], float]) -> None:
        """Show a counter that somebody else keeps."""
        self.registry.register(_Watched(f"steersman_{name}", text, value))

    def page(self) -> bytes:
        """The page in the Prometheus text format."""
        return generate_latest(self.registry)


class _Watched(Collector):
    def __init__(self, name: str, text: str, value: Callable[[], float]) -> None:
        self._name, self._text, self._value = name, text, value

    def collect(self) -> Iterable[Metric]:
        yield CounterMetricFamily(self._name, self._text, value=float(self._value()))


class _FleetCollector(Collector):
    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock

    def collect(self) -> Iterable[Metric]:
        yield from self._replicas()
        yield from self._pools()

    def _replicas(self) -> Iterable[Metric]:
        now_s = self._clock()
        # One that leaves and its successor may have the same name for a while.
        replicas = {replica.id: replica for replica in self._fleet.replicas}.values()
        columns = {
            "healthy": ("1 while it may get requests", L.HEALTHY),
            "running": ("Requests in its batch, last scrape", L.RUNNING),
            "waiting": ("Requests in its queue, last scrape", L.WAITING),
            "kv_usage": ("Share of its KV memory in use, last scrape", L.KV_USAGE),
            "inflight": ("Requests this router has there", L.INFLIGHT),
            "cache_trust": (
                "Share of the prompt tokens believed to be cached there that are, of late",
                L.CACHE_TRUST,
            ),
            "prefill_tokens": ("Uncached prompt tokens on their way there", L.PREFILL_TOKENS),
            "mean_ttft_seconds": ("Recent mean, from dispatch", L.MEAN_TTFT_S),
            "mean_tpot_seconds": ("Recent mean", L.MEAN_TPOT_S),
            "log_bias_ttft": ("Mean log of actual over estimated TTFT", L.LOG_BIAS_TTFT),
            "log_bias_tpot": ("Mean log of actual over estimated TPOT", L.LOG_BIAS_TPOT),
        }
        for name, (text, column) in columns.items():
            family = GaugeMetricFamily(f"steersman_replica_{name}", text, labels=["replica"])
            for replica in replicas:
                family.add_metric([replica.id], float(self._fleet.state[replica.index, column]))
            yield family
        ages = GaugeMetricFamily(
            "steersman_replica_metrics_age_seconds", "Since its last scrape", labels=["replica"]
        )
        for replica in replicas:
            age_s = now_s - self._fleet.state[replica.index, L.SCRAPED_AT_S]
            ages.add_metric([replica.id], float(age_s))
        yield ages
        yield from self._trust(replicas, now_s)

    def _trust(self, replicas: Iterable[Replica], now_s: float) -> Iterable[Metric]:
        ejected = GaugeMetricFamily(
            "steersman_replica_ejected",
            "1 while its circuit is not closed, or it is an outlier",
            labels=["replica"],
        )
        share = GaugeMetricFamily(
            "steersman_replica_ramp",
            "Share of its peers' load it may have: slow start below 1",
            labels=["replica"],
        )
        for replica in replicas:
            ejected.add_metric([replica.id], float(self._fleet.trust.is_out(replica, now_s)))
            share.add_metric([replica.id], self._fleet.trust.ramp(replica, now_s))
        yield from (ejected, share)

    def _pools(self) -> Iterable[Metric]:
        labels = ["model"]
        healthy = GaugeMetricFamily(
            "steersman_pool_healthy", "Replicas that may be chosen", labels=labels
        )
        size = GaugeMetricFamily("steersman_pool_replicas", "Replicas configured", labels=labels)
        jain = GaugeMetricFamily(
            "steersman_pool_load_jain", "Jain's index of the batch use, 1 is even", labels=labels
        )
        ratio = GaugeMetricFamily(
            "steersman_pool_load_max_over_mean", "Largest over mean batch use", labels=labels
        )
        for pool in self._fleet.pools.values():
            state = self._fleet.state[pool.rows]
            well = state[:, L.HEALTHY] > 0
            use = (load_now(state).queue / state[:, L.MAX_NUM_SEQS])[well]
            size.add_metric([pool.model], float(len(well)))
            healthy.add_metric([pool.model], float(well.sum()))
            jain.add_metric([pool.model], jain_index(use))
            ratio.add_metric([pool.model], max_over_mean(use))
        yield from (healthy, size, jain, ratio)
