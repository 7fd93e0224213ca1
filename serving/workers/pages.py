"""One metrics page for all workers.

Every worker puts its own page where all of them see it, every second, and whoever is asked adds up what
is there, its own among it: so what is shown never goes back, whoever is asked. What a worker had counted
when it ended is kept by the supervisor. All of it is in memory: to replace a file may take seconds where
the disk is busy, and a router that waits for a disk serves nobody.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterable, Iterator

import numpy as np
from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from steersman.serving.metrics import RouterMetrics

INTERVAL_S = 1.0
MOST_BYTES = 4 * 2**20
"""Of one page; one that is longer is not shown. Memory that is not used is not taken."""
_HEAD = 16
_SUMMED = ("in_flight", "inflight", "prefill_tokens", "log_queued")
"""Ends of the names of gauges that add up."""
_LEAST = ("healthy", "reload_ok", "ramp", "_created")
"""And of those of which the least is shown; of all others the mean."""


class PageRack:
    """Pages in memory that all processes see; each slot has one writer.

    A reader that meets a writer looks again: the version is odd while a page is being written.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self._memory = mmap.mmap(-1, slots * (MOST_BYTES + _HEAD))

    def put(self, slot: int, page: bytes) -> None:
        """Replace a page; b'' for none."""
        start = slot * (MOST_BYTES + _HEAD)
        if len(page) > MOST_BYTES:
            return
        head = self._head(slot)
        head[0] += 1
        head[1] = len(page)
        self._memory[start + _HEAD : start + _HEAD + len(page)] = page
        head[0] += 1

    def get(self, slot: int) -> bytes:
        """A page; b'' if there is none, or its writer died while it wrote."""
        start = slot * (MOST_BYTES + _HEAD) + _HEAD
        head = self._head(slot)
        for _ in range(1000):
            version, length = int(head[0]), int(head[1])
            page = self._memory[start : start + length]
            if version % 2 == 0 and int(head[0]) == version:
                return page
        return b""

    def clear(self, slot: int) -> None:
        """Whoever wrote there is gone, in the middle of it perhaps."""
        head = self._head(slot)
        head[0] += head[0] % 2
        self.put(slot, b"")

    def _head(self, slot: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        offset = slot * (MOST_BYTES + _HEAD)
        return np.frombuffer(self._memory, dtype=np.int64, count=2, offset=offset)


class WorkerPages:
    """The control loop that shows one worker's page, and the page of all."""

    name = "metrics of this worker"

    def __init__(self, rack: PageRack, seat: int, metrics: RouterMetrics) -> None:
        self._rack = rack
        self._seat = seat
        self._metrics = metrics

    async def step(self, now_s: float) -> float:  # noqa: ARG002
        """Show it as it is now; returns the pause."""
        self.show()
        return INTERVAL_S

    def show(self) -> None:
        """Show it as it is now."""
        self._rack.put(self._seat, self._metrics.page())

    def page(self) -> bytes:
        """Of all workers, as they last showed it."""
        return merged_page(self._rack.get(slot) for slot in range(self._rack.slots))


class DepartedPages:
    """The supervisor's part: what those had counted that have ended, and how many have.

    Args:
        rack: with two slots after those of the workers.
    """

    def __init__(self, rack: PageRack) -> None:
        self._rack = rack
        self._registry = CollectorRegistry(auto_describe=False)
        self._restarts = Counter(
            "steersman_worker_restarts", "Workers that ended unasked", registry=self._registry
        )

    def restarted(self) -> None:
        """One ended unasked."""
        self._restarts.inc()
        self._rack.put(self._rack.slots - 1, generate_latest(self._registry))

    def departed(self, seat: int) -> None:
        """A worker is gone: its counters stay, its gauges go with it."""
        slot = self._rack.slots - 2
        families = merged([self._rack.get(seat), self._rack.get(slot)])
        counted = [family for family in families if family.type in {"counter", "histogram"}]
        self._rack.put(slot, generate_latest(_Page(counted)))
        self._rack.clear(seat)


class _Page(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def merged_page(pages: Iterable[bytes]) -> bytes:
    """Pages of several workers as one."""
    return generate_latest(_Page(merged(pages)))


def merged(pages: Iterable[bytes]) -> list[Metric]:
    """The families of several pages: counters and histograms summed, gauges each in its way."""
    families: dict[str, Metric] = {}
    values: dict[str, dict[tuple[str, tuple[tuple[str, str], ...]], list[float]]] = {}
    for family in _families(pages):
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


def _families(pages: Iterable[bytes]) -> Iterator[Metric]:
    for page in pages:
        yield from text_string_to_metric_families(page.decode())
