"""Changing a trace's times and sizes leaves everything else as it was."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.traces.arrivals import Gamma, Poisson, rescale, scale_tokens, superpose, with_arrivals
from steersman.traces.errors import ConfigError
from steersman.traces.readers import load_trace
from steersman.traces.schema import Request
from steersman.traces.statistics import seen_blocks
from steersman.traces.trace import Trace
from tests.traces.strategies import requests


def _but_times(trace: Trace) -> dict[str, Request]:
    return {r.request_id: dataclasses.replace(r, arrival_s=0.0) for r in trace.requests()}


@given(requests(), st.floats(0.01, 1000.0))
def test_rescale_changes_the_rate_only(given_requests: list[Request], rate_rps: float) -> None:
    trace = Trace.from_requests("t", given_requests)
    if trace.duration_s < 1e-3:
        return
    scaled = rescale(trace, rate_rps)
    assert scaled.rate_rps == pytest.approx(rate_rps)
    assert list(_but_times(scaled).values()) == list(_but_times(trace).values())


@given(requests(), st.integers(0, 2**32))
def test_with_arrivals_keeps_sessions_in_order(given_requests: list[Request], seed: int) -> None:
    trace = Trace.from_requests("t", given_requests)
    moved = with_arrivals(trace, Gamma(3.0, 2.0), seed=seed)
    assert _but_times(moved) == _but_times(trace)
    row_of = {request_id: row for row, request_id in enumerate(moved.request_ids)}
    for row in range(len(trace)):
        if trace.parent[row] >= 0:
            parent = trace.parent[row]
            gap = moved.arrival_s[row_of[f"r{row}"]] - moved.arrival_s[row_of[f"r{parent}"]]
            assert gap == pytest.approx(trace.arrival_s[row] - trace.arrival_s[parent], abs=1e-6)
    roots = [i for i, parent in zip(moved.request_ids, moved.parent, strict=True) if parent < 0]
    assert sorted(roots, key=lambda i: int(i[1:])) == roots
    assert moved.fingerprint() == with_arrivals(trace, Gamma(3.0, 2.0), seed=seed).fingerprint()


@given(requests(), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_scale_tokens(given_requests: list[Request], input_factor: float, output_factor: float) -> None:
    trace = Trace.from_requests("t", given_requests)
    scaled = scale_tokens(trace, input_factor=input_factor, output_factor=output_factor)
    for before, after in zip(trace.requests(), scaled.requests(), strict=True):
        assert after.input_tokens == max(round(before.input_tokens * input_factor), 1)
        assert (after.output_tokens is None) == (before.output_tokens is None)
        kept = after.input_tokens // before.block_tokens if before.block_tokens else 0
        assert after.block_hashes == before.block_hashes[:kept]
        assert (after.max_tokens is None) == (before.max_tokens is None)


@given(requests(max_size=10), requests(max_size=10))
def test_superpose_adds_up(one: list[Request], other: list[Request]) -> None:
    traces = [Trace.from_requests("a", one), Trace.from_requests("b", other)]
    both = superpose(traces)
    assert len(both) == len(one) + len(other)
    back = {r.request_id: r for r in both.requests()}
    for number, part in enumerate((one, other)):
        for before in part:
            after = back[f"{number}/{before.request_id}"]
            assert (after.tenant, after.model, after.lora_adapter) == (
                before.tenant,
                before.model,
                before.lora_adapter,
            )
            assert after.arrival_s == before.arrival_s
            assert after.parent_id == (before.parent_id and f"{number}/{before.parent_id}")
            assert after.session_id == (before.session_id and f"{number}/{before.session_id}")
            assert Counter(Counter(after.block_hashes).values()) == Counter(
                Counter(before.block_hashes).values()
            )


def test_superposed_traces_share_no_prefixes() -> None:
    trace = load_trace_excerpt()
    both = superpose([trace, trace])
    assert len(np.unique(both.block_hashes)) == 2 * len(np.unique(trace.block_hashes))
    assert seen_blocks(both).sum() == 2 * seen_blocks(trace).sum()


def test_impossible_changes_are_refused() -> None:
    trace = load_trace("azure-chat", limit=10)
    with pytest.raises(ConfigError, match="rate_rps = 0 must be positive"):
        rescale(trace, 0.0)
    with pytest.raises(ConfigError, match="needs two arrivals"):
        rescale(trace.select([0]), 1.0)
    with pytest.raises(ConfigError, match="input_factor = -1 must be positive"):
        scale_tokens(trace, input_factor=-1.0)
    with pytest.raises(ConfigError, match="these have no traces"):
        superpose([])
    sixteen = Trace.from_requests("t", [Request("a", 0.0, 64, block_hashes=(1,), block_tokens=16)])
    with pytest.raises(ConfigError, match="these have 16, 512"):
        superpose([sixteen, load_trace_excerpt()])


def test_poisson_load_on_the_bundled_trace() -> None:
    trace = load_trace("azure-chat", limit=5000)
    moved = with_arrivals(trace, Poisson(20.0), seed=1)
    assert moved.rate_rps == pytest.approx(20.0, rel=0.05)
    assert moved.request_ids == trace.request_ids


def load_trace_excerpt() -> Trace:
    from pathlib import Path

    return load_trace(
        Path(__file__).resolve().parents[1] / "data" / "mooncake_conversation_excerpt.jsonl"
    )
