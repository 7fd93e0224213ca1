"""One metrics page for all workers."""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from steersman.serving.metrics import RouterMetrics
from steersman.serving.workers.pages import (
    MOST_BYTES,
    DepartedPages,
    PageRack,
    WorkerPages,
    merged_page,
)


def values(page: bytes) -> dict[str, float]:
    return {
        sample.name + "".join(f"{{{v}}}" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def worker(*, ok: int, waits: float, reload_ok: float = 1.0) -> bytes:
    metrics = RouterMetrics()
    metrics.requests.labels("m", "ok").inc(ok)
    metrics.ttft.labels("m").observe(0.3)
    metrics.in_flight.set(waits)
    metrics.latched.labels("m").set(waits)
    metrics.reload_ok.set(reload_ok)
    return metrics.page()


def test_counters_and_histograms_add_up_and_gauges_each_in_its_way() -> None:
    pages = [worker(ok=3, waits=2.0), worker(ok=4, waits=1.0, reload_ok=0.0), b""]
    page = values(merged_page(pages))
    assert page["steersman_requests_total{m}{ok}"] == 7.0
    assert page["steersman_ttft_seconds_count{m}"] == 2.0
    assert page["steersman_ttft_seconds_bucket{0.5}{m}"] == 2.0
    assert page["steersman_requests_in_flight"] == 3.0
    assert page["steersman_guard_latched{m}"] == 1.5
    assert page["steersman_config_reload_ok"] == 0.0


def test_merging_one_page_changes_nothing() -> None:
    one = worker(ok=3, waits=2.0)
    assert values(merged_page([one])) == values(one)


def test_what_a_worker_counted_outlives_it() -> None:
    rack = PageRack(4)
    departed = DepartedPages(rack)
    rack.put(0, worker(ok=3, waits=2.0))
    rack.put(1, worker(ok=4, waits=1.0))
    for seat in (0, 1, 0):
        departed.departed(seat)
    departed.restarted()
    page = values(merged_page(rack.get(slot) for slot in range(4)))
    assert page["steersman_requests_total{m}{ok}"] == 7.0
    assert page["steersman_worker_restarts_total"] == 1.0
    assert "steersman_requests_in_flight" not in page


async def test_a_worker_shows_its_page() -> None:
    metrics = RouterMetrics()
    pages = WorkerPages(PageRack(2), 0, metrics)
    metrics.requests.labels("m", "ok").inc()
    await pages.step(0.0)
    assert values(pages.page())["steersman_requests_total{m}{ok}"] == 1.0


def test_a_writer_that_died_while_it_wrote_shows_nothing_and_its_slot_is_used_again() -> None:
    rack = PageRack(2)
    rack.put(1, b"whole")
    rack._head(1)[0] += 1
    assert rack.get(1) == b""
    rack.clear(1)
    assert rack.get(1) == b""
    rack.put(1, b"next")
    assert (rack.get(0), rack.get(1)) == (b"", b"next")
    rack.put(1, bytes(MOST_BYTES + 1))
    assert rack.get(1) == b"next", "too long to be shown"
