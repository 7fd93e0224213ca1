"""vLLM's metrics page: the engine's own numbers, and latencies as the server saw them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from steersman.env.emulator.histogram import (
    INTER_TOKEN_BOUNDS_S,
    REQUEST_BOUNDS_S,
    TTFT_BOUNDS_S,
    Histogram,
)
from steersman.env.engine_dialects import VLLM
from steersman.env.engine_live import LiveMetrics
from steersman.traces.schema import HardwareProfile

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MetricsPage(Collector):
    """Collects what `/metrics` shows, from a registry of its own."""

    def __init__(self, profile: HardwareProfile, model: str, read: Callable[[], LiveMetrics]) -> None:
        """`read` gives the engine's numbers at the moment of the scrape."""
        self._profile = profile
        self._labels = {"engine": "0", "model_name": model}
        self._read = read
        self._idle = False
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.finished: Counter[str] = Counter()
        """By finish reason; `abort` where the client went away."""
        self.ttft = Histogram(VLLM.ttft[0].name, "Time to first token.", TTFT_BOUNDS_S)
        self.inter_token = Histogram(VLLM.inter_token[0].name, "Between tokens.", INTER_TOKEN_BOUNDS_S)
        self.e2e = Histogram(VLLM.e2e[0].name, "End-to-end latency.", REQUEST_BOUNDS_S)
        self.queue_time = Histogram(VLLM.queue_time[0].name, "Time in the queue.", REQUEST_BOUNDS_S)
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def render(self, *, idle: bool = False) -> bytes:
        """The page in Prometheus text format; `idle`: as if there were nothing to do."""
        self._idle = idle
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        """Called by the registry."""
        now = self._read()
        if self._idle:
            now = replace(now, running=0, waiting=0, kv_usage=0.0)
        yield self._gauge(VLLM.running[0].name, "Requests in the batch.", now.running)
        yield self._gauge(VLLM.waiting[0].name, "Requests in the queue.", now.waiting)
        yield self._gauge(VLLM.kv_usage[0].name, "KV cache in use, 1 is full.", now.kv_usage)
        yield self._counter(VLLM.prefix_queries[0].name, "Prompt tokens looked up.", now.prefix_queries)
        yield self._counter(VLLM.prefix_hits[0].name, "Prompt tokens found.", now.prefix_hits)
        yield self._counter(VLLM.preemptions[0].name, "Preemptions.", now.preemptions)
        yield self._counter("vllm:prompt_tokens_total", "Prompt tokens.", self.prompt_tokens)
        yield self._counter("vllm:generation_tokens_total", "Output tokens.", self.generation_tokens)
        yield self._finished()
        yield self._cache_config()
        for histogram in (self.ttft, self.inter_token, self.e2e, self.queue_time):
            yield histogram.family(self._labels)

    def _gauge(self, name: str, documentation: str, value: float) -> GaugeMetricFamily:
        family = GaugeMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _counter(self, name: str, documentation: str, value: float) -> CounterMetricFamily:
        family = CounterMetricFamily(name, documentation, labels=list(self._labels))
        family.add_metric(list(self._labels.values()), value)
        return family

    def _finished(self) -> CounterMetricFamily:
        labels = [*self._labels, "finished_reason"]
        family = CounterMetricFamily("vllm:request_success_total", "Requests ended.", labels=labels)
        for reason in ("stop", "length", "abort"):
            family.add_metric([*self._labels.values(), reason], self.finished[reason])
        return family

    def _cache_config(self) -> GaugeMetricFamily:
        block = self._profile.block_tokens
        labels = {
            "block_size": str(block),
            "num_gpu_blocks": str(self._profile.kv_capacity_tokens // block),
            "engine": "0",
        }
        family = GaugeMetricFamily(VLLM.cache_config[0].name, "KV cache settings.", labels=list(labels))
        family.add_metric(list(labels.values()), 1.0)
        return family
