"""The stratified window: bounded, newest slice apart, rare strata kept."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.window import MOST_OCTAVES, StratifiedWindow, latency_bucket

ADDED = st.lists(st.integers(0, 4), max_size=200)


@given(ADDED, st.integers(1, 30), st.integers(1, 20))
def test_it_is_bounded_and_the_newest_slice_is_apart(
    buckets: list[int], capacity: int, held_out: int
) -> None:
    window = StratifiedWindow[int](capacity, held_out)
    for number, bucket in enumerate(buckets):
        window.add(number, (bucket,))
        assert len(window.train) <= capacity
        assert window.held == list(range(max(0, number + 1 - held_out), number + 1))
    train, held = window.train, window.held
    assert train == sorted(train)
    assert not set(train) & set(held)
    assert len(window) == len(train) + len(held)
    assert all(old < new for old in train for new in held[:1])
    assert sum(window.bucket_sizes.values()) == len(train)


@given(ADDED, st.integers(1, 30))
def test_a_bucket_loses_only_while_no_other_is_fuller(buckets: list[int], capacity: int) -> None:
    window = StratifiedWindow[int](capacity, 1)
    for number, bucket in enumerate(buckets):
        window.add(number, (bucket,))
    passed = buckets[:-1]
    sizes = window.bucket_sizes
    fair = capacity // max(len(set(passed)), 1)
    for bucket in set(passed):
        kept = sizes.get((bucket,), 0)
        assert kept >= min(passed.count(bucket), fair), "what is rare stays"
        numbers = [number for number, other in enumerate(passed) if other == bucket]
        of_bucket = [number for number in window.train if buckets[number] == bucket]
        assert of_bucket == numbers[len(numbers) - kept :], "the newest of a bucket stay"


def test_heavy_load_survives_a_long_quiet_time() -> None:
    window = StratifiedWindow[str](100, 10)
    for _ in range(20):
        window.add("heavy", latency_bucket("h100", 1.0, 9.0, 6.0))
    for _ in range(10_000):
        window.add("light", latency_bucket("h100", 0.1, 0.0, 0.05))
    assert window.train.count("heavy") == 20


@given(st.floats(-1.0, 9.0), st.floats(0.0, 1e6), st.floats(1e-9, 1e9))
def test_there_are_few_buckets(batch_use: float, waiting: float, ttft_s: float) -> None:
    hardware, band, queued, octave = latency_bucket("x", batch_use, waiting, ttft_s)
    assert hardware == "x"
    assert band in range(4)
    assert queued == (waiting >= 1.0)
    assert octave in range(MOST_OCTAVES + 1)


def test_the_bounds_are_checked() -> None:
    with pytest.raises(ValueError, match="capacity = 0"):
        StratifiedWindow[int](0, 1)
