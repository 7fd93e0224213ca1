from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from steersman.env.emulator.histogram import TTFT_BOUNDS_S, Histogram
from steersman.env.emulator.metrics import MetricsPage
from steersman.env.engine_live import LiveMetrics
from steersman.env.engine_metrics import parse_metrics
from steersman.env.profiles import load_profile

PROFILE = load_profile("a100-llama-3.1-8b")
NOW = LiveMetrics(
    running=3,
    waiting=2,
    kv_usage=0.25,
    preemptions=1,
    prefix_queries=100,
    prefix_hits=40,
    iterations=9,
    busy_s=1.0,
)


def page() -> MetricsPage:
    return MetricsPage(PROFILE, 'a "quoted" name', lambda: NOW)


def test_a_scraper_reads_what_the_engine_said() -> None:
    read = parse_metrics(page().render())
    assert read.dialect == "vllm"
    assert (read.running, read.waiting, read.kv_usage) == (3, 2, 0.25)
    assert (read.prefix_queries, read.prefix_hits, read.preemptions) == (100, 40, 1)
    assert read.kv_capacity_tokens == PROFILE.kv_capacity_tokens // 16 * 16


def test_the_page_is_valid_prometheus_text_with_the_labels_of_vllm() -> None:
    made = page()
    made.ttft.observe(0.3)
    made.finished["stop"] += 2
    families = {f.name: f for f in text_string_to_metric_families(made.render().decode())}
    running = families["vllm:num_requests_running"].samples[0]
    assert running.labels == {"engine": "0", "model_name": 'a "quoted" name'}
    ended = {s.labels["finished_reason"]: s.value for s in families["vllm:request_success"].samples}
    assert ended == {"stop": 2.0, "length": 0.0, "abort": 0.0}
    for name in (
        "time_to_first_token",
        "inter_token_latency",
        "e2e_request_latency",
        "request_queue_time",
    ):
        assert families[f"vllm:{name}_seconds"].type == "histogram"


@given(st.lists(st.tuples(st.floats(0, 1e4), st.integers(1, 50)), max_size=30))
def test_histograms_count_everything_at_or_below_each_bound(observed: list[tuple[float, int]]) -> None:
    histogram = Histogram("h", "doc", TTFT_BOUNDS_S)
    for value, weight in observed:
        histogram.observe(value, weight)
    samples = histogram.family({"a": "b"}).samples
    buckets = [s for s in samples if s.name == "h_bucket"]
    for sample in buckets:
        bound = float(sample.labels["le"])
        assert sample.value == sum(weight for value, weight in observed if value <= bound)
    assert buckets[-1].labels["le"] == "+Inf"
    (total,) = [s.value for s in samples if s.name == "h_sum"]
    assert total == pytest.approx(sum(value * weight for value, weight in observed))
