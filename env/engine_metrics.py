"""The metrics pages of inference engines: what the names are, and how to read them.

One table per engine ("dialect"), newest name first, so that an engine which renames a metric costs one
line here. The scraper reads with these tables and the emulated backend writes with them. Nothing here
imports more than the standard library.

Names are taken from the engines' own documentation: vLLM (v0 and v1), SGLang, TensorRT-LLM and its
Triton backend, Text Generation Inference.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from steersman.traces.errors import BackendError

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A metrics page above this is refused: a vLLM page with many LoRA adapters is about 200 KiB."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One name on the page, optionally one value of one label."""

    name: str
    label: str = ""
    value: str = ""


@dataclass(frozen=True, slots=True)
class Dialect:
    """Where an engine tells what. Each field lists alternatives, the newest first."""

    name: str
    running: tuple[Metric, ...]
    waiting: tuple[Metric, ...]
    kv_usage: tuple[Metric, ...] = ()
    """Fraction of KV memory in use, 0 to 1 (vLLM's `_perc` too)."""
    prefix_queries: tuple[Metric, ...] = ()
    prefix_hits: tuple[Metric, ...] = ()
    preemptions: tuple[Metric, ...] = ()
    cache_config: tuple[Metric, ...] = ()
    """Info metric whose labels `block_size` and `num_gpu_blocks` give the KV capacity."""
    ttft: tuple[Metric, ...] = ()
    """Histogram, seconds; so are the three below. Read by people, written by the emulator."""
    inter_token: tuple[Metric, ...] = ()
    e2e: tuple[Metric, ...] = ()
    queue_time: tuple[Metric, ...] = ()
    waiting_is_total: bool = False
    """`waiting` counts the running ones too."""


def _names(*names: str) -> tuple[Metric, ...]:
    return tuple(Metric(name) for name in names)


VLLM = Dialect(
    name="vllm",
    running=_names("vllm:num_requests_running"),
    waiting=_names("vllm:num_requests_waiting"),
    kv_usage=_names("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    prefix_queries=_names("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    prefix_hits=_names("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
    preemptions=_names("vllm:num_preemptions_total"),
    cache_config=_names("vllm:cache_config_info"),
    ttft=_names("vllm:time_to_first_token_seconds"),
    inter_token=_names("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    e2e=_names("vllm:e2e_request_latency_seconds"),
    queue_time=_names("vllm:request_queue_time_seconds"),
)
SGLANG = Dialect(
    name="sglang",
    running=_names("sglang:num_running_reqs"),
    waiting=_names("sglang:num_queue_reqs"),
    kv_usage=_names("sglang:token_usage"),
    ttft=_names("sglang:time_to_first_token_seconds"),
    inter_token=_names("sglang:inter_token_latency_seconds", "sglang:time_per_output_token_seconds"),
    e2e=_names("sglang:e2e_request_latency_seconds"),
)
TENSORRT_LLM = Dialect(
    name="tensorrt-llm",
    running=_names("trtllm_num_requests_running"),
    waiting=_names("trtllm_num_requests_waiting"),
    kv_usage=_names("trtllm_kv_cache_utilization"),
)
TRITON = Dialect(
    name="triton",
    running=(Metric("nv_trt_llm_request_metrics", "request_type", "scheduled"),),
    waiting=(Metric("nv_trt_llm_request_metrics", "request_type", "active"),),
    kv_usage=(Metric("nv_trt_llm_kv_cache_block_metrics", "kv_cache_block_type", "fraction"),),
    waiting_is_total=True,
)
TGI = Dialect(
    name="tgi",
    running=_names("tgi_batch_current_size"),
    waiting=_names("tgi_queue_size"),
)

DIALECTS: tuple[Dialect, ...] = (VLLM, SGLANG, TENSORRT_LLM, TRITON, TGI)


@dataclass(frozen=True, slots=True)
class EngineMetrics:
    """What one scrape of one replica told, over all its data-parallel ranks."""

    dialect: str
    running: float
    """Requests in the engine's batch, summed over ranks."""
    waiting: float
    """Requests in the engine's queue, summed over ranks."""
    kv_usage: float
    """Mean over ranks, 0 to 1; 0 where the engine does not tell (TGI)."""
    kv_capacity_tokens: float = 0.0
    """Summed over ranks; 0 where the engine does not tell."""
    prefix_queries: float = 0.0
    """Counter of prompt tokens looked up in the prefix cache; 0 where the engine does not tell."""
    prefix_hits: float = 0.0
    preemptions: float = 0.0
    """Counter."""


def parse_metrics(page: bytes) -> EngineMetrics:
    """Read a metrics page in the Prometheus or OpenMetrics text format; the engine is recognised.

    Tolerant of what it does not know: other metrics, comments, timestamps, exemplars, CRLF. A sample
    that is NaN counts as not told. Only the few lines that matter are looked at, however long the page.

    Raises:
        BackendError: the page is too large, is no engine's page, or a number on it is not one.
    """
    if len(page) > MAX_PAGE_BYTES:
        raise BackendError(
            f"metrics page of {len(page)} bytes is above the limit of {MAX_PAGE_BYTES}; "
            "point the scraper at the engine itself, not at an aggregating exporter"
        )
    text = b"\n" + page
    for dialect in DIALECTS:
        running = _first_told(text, dialect.running)
        if running:
            return _read(text, dialect, running)
    known = ", ".join(dialect.running[0].name for dialect in DIALECTS)
    raise BackendError(f"metrics page has none of {known}; is it an inference engine's /metrics?")


def _read(text: bytes, dialect: Dialect, running: list[float]) -> EngineMetrics:
    waiting = sum(_first_told(text, dialect.waiting))
    if dialect.waiting_is_total:
        waiting = max(waiting - sum(running), 0.0)
    usage = _first_told(text, dialect.kv_usage)
    mean_usage = sum(usage) / len(usage) if usage else 0.0
    return EngineMetrics(
        dialect=dialect.name,
        running=sum(running),
        waiting=waiting,
        kv_usage=min(mean_usage, 1.0),
        kv_capacity_tokens=_kv_capacity_tokens(text, dialect),
        prefix_queries=sum(_first_told(text, dialect.prefix_queries)),
        prefix_hits=sum(_first_told(text, dialect.prefix_hits)),
        preemptions=sum(_first_told(text, dialect.preemptions)),
    )


def _first_told(text: bytes, alternatives: tuple[Metric, ...]) -> list[float]:
    """One value per rank of the first alternative on the page; empty if there is none."""
    for metric in alternatives:
        wanted = f'{metric.label}="{metric.value}"'.encode() if metric.label else b""
        values = [
            _number(metric.name, value)
            for labels, value in _samples(text, metric.name)
            if not wanted or wanted in labels
        ]
        told = [value for value in values if not math.isnan(value)]
        if told:
            return told
    return []


def _kv_capacity_tokens(text: bytes, dialect: Dialect) -> float:
    total = 0.0
    for metric in dialect.cache_config:
        for labels, _ in _samples(text, metric.name):
            block = re.search(rb'block_size="(\d{1,6})"', labels)
            # `num_gpu_blocks_override` ends otherwise, so the quote tells them apart.
            blocks = re.search(rb'num_gpu_blocks="(\d{1,9})"', labels)
            if block and blocks:
                total += float(int(block[1]) * int(blocks[1]))
    return total


_SAMPLE = re.compile(rb'(\{(?:[^"}\n]|"(?:[^"\\\n]|\\.)*")*\})?[ \t]+([^ \t\r\n]+)')


def _samples(text: bytes, name: str) -> Iterator[tuple[bytes, bytes]]:
    """(labels, value) of each sample of a metric; `text` begins with a newline."""
    needle = b"\n" + name.encode()
    at = text.find(needle)
    while at >= 0:
        # A longer name, such as `..._created`, does not match: labels or a space must follow.
        match = _SAMPLE.match(text, at + len(needle))
        if match:
            yield match[1] or b"", match[2]
        at = text.find(needle, at + len(needle))


def _number(name: str, value: bytes) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if number < 0.0 or math.isinf(number):
        shown = value[:40].decode("utf-8", "replace")
        raise BackendError(f"metrics page: {name} = {shown!r} is not a non-negative number")
    return number
