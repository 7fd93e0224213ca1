"""One metrics page for all workers.

Every worker writes its own page to a file every few seconds, and whoever is asked adds up all files, its
own among them: so what is shown never goes back, whoever is asked. What a worker had counted when it
ended is kept by the supervisor.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from steersman.serving.metrics import RouterMetrics

INTERVAL_S = 1.0
_DEPARTED, _SUPERVISOR = "departed.prom", "supervisor.prom"
_SUMMED = ("in_flight", "inflight", "prefill_tokens", "log_dropped", "log_errors", "log_queued")
"""Ends of the names of gauges that add up."""
_LEAST = ("healthy", "reload_ok", "ramp", "_created")
"""And of those of which the least is shown; of all others the mean."""


class WorkerPages:
    """The control loop that writes one worker's page, and the page of all."""

    name = "metrics of this worker"

    def __init__(self, directory: Path, metrics: RouterMetrics) -> None:
        self._directory = directory
        self._metrics = metrics

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Write; returns the pause."""
        self.write()
        return INTERVAL_S

    def write(self) -> None:
        """The page as it is now; a disk that is full costs its newest numbers."""
        with contextlib.suppress(OSError):
            _replace(self._directory / f"{os.getpid()}.prom", self._metrics.page())

    def page(self) -> bytes:
        """Of all workers, as they last wrote it."""
        return merged_page(sorted(self._directory.glob("*.prom")))


class DepartedPages:
    """The supervisor's part: what those had counted that have ended, and how many have."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._registry = CollectorRegistry(auto_describe=False)
        self._restarts = Counter(
            "steersman_worker_restarts", "Workers that ended unasked", registry=self._registry
        )

    def restarted(self) -> None:
        """One ended unasked."""
        self._restarts.inc()
        _replace(self._directory / _SUPERVISOR, generate_latest(self._registry))

    def departed(self, pid: int) -> None:
        """A worker is gone: its counters stay, its gauges go with it."""
        own, all_departed = self._directory / f"{pid}.prom", self._directory / _DEPARTED
        families = [f for f in merged([own, all_departed]) if f.type in {"counter", "histogram"}]
        _replace(all_departed, generate_latest(_Page(families)))
        own.unlink(missing_ok=True)


class _Page(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def merged_page(paths: Iterable[Path]) -> bytes:
    """Pages of several workers as one."""
    return generate_latest(_Page(merged(paths)))


def merged(paths: Iterable[Path]) -> list[Metric]:
    """The families of several pages: counters and histograms summed, gauges each in its way."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]] = {}
    for family in _families(paths):
        families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        samples = values.setdefault(family.name, {})
        for sample in family.samples:
            key = sample.name, tuple(sample.labels.items())
            samples.setdefault(key, []).append(sample.value)
    for name, family in families.items():
        for (sample_name, labels), found in values[name].items():
            family.add_sample(sample_name, dict(labels), _one(family, found))
    return list(families.values())


def _one(family: Metric, found: list[float]) -> float:
    if family.type in {"counter", "histogram"} or family.name.endswith(_SUMMED):
        return sum(found)
    return min(found) if family.name.endswith(_LEAST) else sum(found) / len(found)


def _families(paths: Iterable[Path]) -> Iterator[Metric]:
    for path in paths:
        with contextlib.suppress(OSError, ValueError):  # one that has just ended
            yield from list(text_string_to_metric_families(path.read_text(encoding="utf-8")))


def _replace(path: Path, page: bytes) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_bytes(page)
    fresh.replace(path)
