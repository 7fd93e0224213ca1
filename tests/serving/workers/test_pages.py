"""One metrics page for all workers."""

from __future__ import annotations

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from steersman.serving.metrics import RouterMetrics
from steersman.serving.workers.pages import DepartedPages, WorkerPages, merged_page


def values(page: bytes) -> dict[str, float]:
    return {
        sample.name + "".join(f"{{{v}}}" for v in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(page.decode())
        for sample in family.samples
    }


def worker(directory: Path, name: str, *, ok: int, waits: float, reload_ok: float = 1.0) -> Path:
    metrics = RouterMetrics()
    metrics.requests.labels("m", "ok").inc(ok)
    metrics.ttft.labels("m").observe(0.3)
    metrics.in_flight.set(waits)
    metrics.latched.labels("m").set(waits)
    metrics.reload_ok.set(reload_ok)
    path = directory / name
    path.write_bytes(metrics.page())
    return path


def test_counters_and_histograms_add_up_and_gauges_each_in_its_way(tmp_path: Path) -> None:
    one = worker(tmp_path, "1.prom", ok=3, waits=2.0)
    two = worker(tmp_path, "2.prom", ok=4, waits=1.0, reload_ok=0.0)
    page = values(merged_page([one, two, tmp_path / "gone.prom"]))
    assert page["steersman_requests_total{m}{ok}"] == 7.0
    assert page["steersman_ttft_seconds_count{m}"] == 2.0
    assert page["steersman_ttft_seconds_bucket{0.5}{m}"] == 2.0
    assert page["steersman_requests_in_flight"] == 3.0
    assert page["steersman_guard_latched{m}"] == 1.5
    assert page["steersman_config_reload_ok"] == 0.0


def test_merging_one_page_changes_nothing(tmp_path: Path) -> None:
    one = worker(tmp_path, "1.prom", ok=3, waits=2.0)
    assert values(merged_page([one])) == values(one.read_bytes())


def test_what_a_worker_counted_outlives_it(tmp_path: Path) -> None:
    departed = DepartedPages(tmp_path)
    one = worker(tmp_path, "11.prom", ok=3, waits=2.0)
    two = worker(tmp_path, "12.prom", ok=4, waits=1.0)
    departed.departed(11)
    departed.departed(12)
    departed.departed(13)
    departed.restarted()
    assert not one.exists()
    assert not two.exists()
    page = values(merged_page(sorted(tmp_path.glob("*.prom"))))
    assert page["steersman_requests_total{m}{ok}"] == 7.0
    assert page["steersman_worker_restarts_total"] == 1.0
    assert "steersman_requests_in_flight" not in page


async def test_a_worker_writes_its_page(tmp_path: Path) -> None:
    metrics = RouterMetrics()
    pages = WorkerPages(tmp_path, metrics)
    metrics.requests.labels("m", "ok").inc()
    await pages.step(0.0)
    assert values(pages.page())["steersman_requests_total{m}{ok}"] == 1.0
    WorkerPages(tmp_path / "no" / "such", metrics).write()
