"""Reading the metrics pages of inference engines; their names are in `env/engine_dialects.py`.

Nothing here imports more than the standard library.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from steersman.env.engine_dialects import DIALECTS, Dialect, Metric
from steersman.traces.errors import BackendError

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A metrics page above this is refused: a vLLM page with many LoRA adapters is about 200 KiB."""


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
    prefix_queries: float | None = None
    """Counter of prompt tokens looked up in the prefix cache; None where the engine does not tell how
    many of them it found."""
    prefix_hits: float | None = None
    preemptions: float = 0.0
    """Counter."""
    adapters: frozenset[str] = frozenset()
    """LoRA adapters in the accelerators' memory; empty where the engine does not tell."""


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
        running = _first_told(text, dialect.running, dialect)
        if running:
            return _read(text, dialect, running)
    known = ", ".join(dialect.running[0].name for dialect in DIALECTS)
    raise BackendError(f"metrics page has none of {known}; is it an inference engine's /metrics?")


def _read(text: bytes, dialect: Dialect, running: list[float]) -> EngineMetrics:
    waiting = sum(_first_told(text, dialect.waiting, dialect))
    if dialect.waiting_is_total:
        waiting = max(waiting - sum(running), 0.0)
    usage = _first_told(text, dialect.kv_usage, dialect)
    mean_usage = sum(usage) / len(usage) if usage else 0.0
    hits = _first_told(text, dialect.prefix_hits, dialect)
    queries = _first_told(text, dialect.prefix_queries, dialect)
    tells = bool(hits and queries)
    return EngineMetrics(
        dialect=dialect.name,
        running=sum(running),
        waiting=waiting,
        kv_usage=min(mean_usage, 1.0),
        kv_capacity_tokens=_kv_capacity_tokens(text, dialect),
        adapters=_adapters(text, dialect),
        prefix_queries=sum(queries) if tells else None,
        prefix_hits=sum(hits) if tells else None,
        preemptions=sum(_first_told(text, dialect.preemptions, dialect)),
    )


def _first_told(text: bytes, alternatives: tuple[Metric, ...], dialect: Dialect) -> list[float]:
    """One value per rank, and part, of the first alternative on the page; empty if there is none."""
    for metric in alternatives:
        told: dict[tuple[bytes, ...], float] = {}
        for place, (labels, text_value) in enumerate(_samples(text, metric.name)):
            value = _number(metric.name, text_value)
            if math.isnan(value) or not _is_meant(labels, metric, dialect):
                continue
            rank = _label(labels, dialect.rank) if dialect.rank else str(place).encode()
            part = rank, *(_label(labels, name) for name in dialect.parts)
            told[part] = max(value, told.get(part, 0.0))
        if told:
            return list(told.values())
    return []


def _is_meant(labels: bytes, metric: Metric, dialect: Dialect) -> bool:
    if metric.label and _label(labels, metric.label) != metric.value.encode():
        return False
    return not dialect.total_where_empty or not _label(labels, dialect.total_where_empty)


def _label(labels: bytes, name: str) -> bytes:
    """Value of a label as it is written; empty if it is not there."""
    match = re.search(rb"[{,]\s*" + name.encode() + rb'="((?:[^"\\]|\\.)*)"', labels)
    return match[1] if match else b""


def _adapters(text: bytes, dialect: Dialect) -> frozenset[str]:
    """Of the sample written last: each change of the list makes another one, and the old ones stay."""
    for metric in dialect.lora:
        samples = [
            (_number(metric.name, value), labels) for labels, value in _samples(text, metric.name)
        ]
        if samples:
            listed = _label(max(samples)[1], "running_lora_adapters").decode("utf-8", "replace")
            return frozenset(filter(None, (name.strip() for name in listed.split(","))))
    return frozenset()


def _kv_capacity_tokens(text: bytes, dialect: Dialect) -> float:
    total = sum(_first_told(text, dialect.kv_capacity, dialect))
    blocks = _first_told(text, dialect.kv_blocks, dialect)
    if blocks:
        total += sum(blocks) * max(_first_told(text, dialect.kv_block_tokens, dialect), default=0.0)
    for metric in dialect.cache_config:
        for labels, _ in _samples(text, metric.name):
            block, count = _label(labels, "block_size"), _label(labels, "num_gpu_blocks")
            if block.isdigit() and count.isdigit() and len(block) < 7 and len(count) < 10:
                total += float(int(block) * int(count))
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
