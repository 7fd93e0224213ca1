"""Metrics of the event loop say what the library's own say; their children are found and forgotten."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from steersman.serving.labelled import LabelledCounter, LabelledGauge, LabelledHistogram


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


def test_they_say_what_the_librarys_own_say() -> None:
    pages = []
    for counter, gauge, histogram in (
        (LabelledCounter, LabelledGauge, LabelledHistogram),
        (Counter, Gauge, Histogram),
    ):
        registry = CollectorRegistry()
        asked = counter("asked", "Asked", registry=registry)
        asked.inc()
        asked.inc(2.5)
        now = gauge("now", "Now", registry=registry)
        now.inc()
        now.inc(3.0)
        now.dec()
        took = histogram("took", "Took", ["model"], buckets=(1.0, 2.0), registry=registry)
        for value in (-1.0, 0.0, 1.0, 1.5, 2.0, 7.0, float("inf")):
            took.labels("m").observe(value)
        pages.append(generate_latest(registry).decode())
    ours, theirs = ([row for row in page.splitlines() if "_created" not in row] for page in pages)
    assert ours == theirs
    assert 'took_bucket{le="2.0",model="m"} 5.0' in ours
