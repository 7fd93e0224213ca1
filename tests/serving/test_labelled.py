"""Children of metrics are found again, and forgotten with their labels."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest

from steersman.serving.labelled import LabelledCounter, LabelledHistogram


def test_children_are_found_again_and_forgotten() -> None:
    registry = CollectorRegistry()
    counter = LabelledCounter("asked", "Asked", ["model", "status"], registry=registry)
    times = LabelledHistogram("took", "Took", ["model"], buckets=(1.0, 2.0), registry=registry)
    counter.labels("m", "ok").inc()
    counter.labels("m", "ok").inc()
    counter.labels(model="m", status="ok").inc()
    times.labels("m").observe(1.5)
    page = generate_latest(registry).decode()
    assert 'asked_total{model="m",status="ok"} 3.0' in page
    assert 'took_bucket{le="2.0",model="m"} 1.0' in page
    counter.remove("m", "ok")
    assert "asked_total{" not in generate_latest(registry).decode()
    counter.labels("m", "ok").inc()
    assert 'asked_total{model="m",status="ok"} 1.0' in generate_latest(registry).decode()
    counter.remove_by_labels({"model": "m"})
    times.clear()
    assert "{" not in generate_latest(registry).decode()
