from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.canary.histogram import bucket, quantile_s, upper_s


@given(st.floats(0.001, 5000.0))
def test_a_latency_is_below_the_end_of_its_bucket_by_four_percent_at_most(seconds: float) -> None:
    end_s = upper_s(bucket(seconds))
    assert seconds <= end_s * (1 + 1e-9)
    assert end_s <= seconds * 1.0401


def test_extremes_have_buckets() -> None:
    assert bucket(0.0) == 0
    assert bucket(1e9) == bucket(1e12)


@given(st.lists(st.floats(0.001, 100.0), min_size=1), st.floats(0.01, 0.99))
def test_a_quantile_has_its_share_below_it(latencies: list[float], level: float) -> None:
    counts: dict[int, int] = {}
    for seconds in latencies:
        counts[bucket(seconds)] = counts.get(bucket(seconds), 0) + 1
    found_s = quantile_s(counts, level)
    assert sum(s <= found_s * (1 + 1e-9) for s in latencies) >= level * len(latencies) - 1e-6
    assert sum(s < found_s / 1.0401 for s in latencies) <= math.ceil(level * len(latencies))


def test_of_nothing_there_is_no_quantile() -> None:
    assert math.isnan(quantile_s({}, 0.99))
