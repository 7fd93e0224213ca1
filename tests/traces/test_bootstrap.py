"""The block bootstrap: exact load, whole sessions, the source's mix and reuse, one result per seed."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.traces.arrivals import block_bootstrap
from steersman.traces.errors import ConfigError
from steersman.traces.readers import load_trace
from steersman.traces.schema import Request
from steersman.traces.statistics import prefix_share
from steersman.traces.trace import Trace
from tests.traces.strategies import requests

DATA = Path(__file__).resolve().parents[1] / "data"


@given(
    requests().filter(bool),
    st.floats(0.1, 20.0),
    st.floats(1.0, 60.0),
    st.integers(0, 999),
    st.floats(0.5, 1e5),
)
def test_any_trace_can_be_resampled(
    given_requests: list[Request], rate_rps: float, duration_s: float, seed: int, block_s: float
) -> None:
    # Times within an hour: resampling a trace of days at a high rate means layers without end.
    squeezed = Trace.from_requests("t", given_requests)
    trace = squeezed.replace(arrival_s=squeezed.arrival_s / 300.0)
    made = block_bootstrap(trace, rate_rps=rate_rps, duration_s=duration_s, seed=seed, block_s=block_s)
    assert len(made) == max(round(rate_rps * duration_s), 1)
    assert (made.arrival_s >= 0).all()
    assert (made.arrival_s <= duration_s * (1 + 1e-9)).all()
    source = {r.request_id: r for r in trace.requests()}
    for request in made.requests():
        original = source[request.request_id.rpartition("#")[0]]
        assert request.input_tokens == original.input_tokens
        assert request.tenant == original.tenant
        assert (request.session_id is None) == (original.session_id is None)
        assert request.think_time_s == original.think_time_s
        assert len(request.block_hashes) == len(original.block_hashes)
        if request.parent_id is not None:
            assert request.parent_id.rpartition("#")[0] == original.parent_id
            assert request.parent_id.rpartition("#")[2] == request.request_id.rpartition("#")[2]


def test_same_seed_same_trace() -> None:
    trace = load_trace("azure-chat", limit=3000)
    prints = [
        block_bootstrap(trace, rate_rps=8.0, duration_s=60.0, seed=seed).fingerprint()
        for seed in (1, 1, 2)
    ]
    assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize("rate_rps", [1.0, 8.0, 50.0])
def test_load_is_exact_and_the_mix_is_kept(rate_rps: float) -> None:
    trace = load_trace("azure-chat")
    made = block_bootstrap(trace, rate_rps=rate_rps, duration_s=600.0, seed=3)
    assert len(made) == 600 * rate_rps
    halves = np.histogram(made.arrival_s, [0, 300, 600])[0]
    assert halves[0] / len(made) == pytest.approx(0.5, abs=0.05)
    assert made.input_tokens.mean() == pytest.approx(trace.input_tokens.mean(), rel=0.15)
    assert made.output_tokens.mean() == pytest.approx(trace.output_tokens.mean(), rel=0.15)


def test_short_term_rhythm_is_kept() -> None:
    # Requests in bursts of ten, ten seconds apart.
    trace = Trace.from_requests(
        "t", [Request(f"r{i}", 10.0 * (i // 10) + 0.01 * (i % 10), 1) for i in range(1000)]
    )
    made = block_bootstrap(trace, rate_rps=1.0, duration_s=500.0, seed=0)
    gaps = np.diff(made.arrival_s)
    assert (gaps < 0.1).mean() == pytest.approx(0.9, abs=0.02)


def test_sessions_come_whole() -> None:
    trace = load_trace(DATA / "agent_sessions_excerpt.jsonl")
    made = block_bootstrap(trace, rate_rps=2.0, duration_s=2000.0, seed=0)
    lengths = Counter(trace.sessions[code] for code in trace.session)
    inside: Counter[str] = Counter()
    first_row: dict[str, int] = {}
    for row, code in enumerate(made.session):
        inside[made.sessions[code]] += 1
        first_row.setdefault(made.sessions[code], row)
    span_s = 250.0
    begun = [
        name
        for name, row in first_row.items()
        if made.parent[row] < 0 and made.turns[row] == 1 and made.arrival_s[row] < 2000.0 - span_s
    ]
    assert len(begun) > 50
    for name in begun:
        assert inside[name] == lengths[name.rpartition("#")[0]]
    roots = (made.parent < 0).sum()
    assert roots == len(made.sessions)


@pytest.mark.parametrize("rate_rps", [0.5, 5.0])
def test_reuse_of_prefixes_is_kept_and_not_inflated(rate_rps: float) -> None:
    trace = load_trace(DATA / "agent_sessions_excerpt.jsonl")
    made = block_bootstrap(trace, rate_rps=rate_rps, duration_s=1000.0, seed=1)
    assert prefix_share(made) == pytest.approx(prefix_share(trace), abs=0.06)


def test_system_prompts_stay_common_to_all_copies() -> None:
    trace = Trace.from_requests(
        "t",
        [Request(f"r{i}", float(i), 48, block_hashes=(7, 100 + i), block_tokens=16) for i in range(60)],
    )
    made = block_bootstrap(trace, rate_rps=10.0, duration_s=60.0, seed=0)
    first = made.block_hashes[made.block_offsets[:-1]]
    assert (first == 7).all()
    second = made.block_hashes[made.block_offsets[:-1] + 1]
    assert len(np.unique(second)) == len(made)


def test_impossible_resampling_is_refused() -> None:
    trace = load_trace("azure-chat", limit=10)
    with pytest.raises(ConfigError, match="rate_rps = 0 must be a positive number"):
        block_bootstrap(trace, rate_rps=0.0, duration_s=1.0, seed=0)
    with pytest.raises(ConfigError, match="no requests to resample"):
        block_bootstrap(trace.select([]), rate_rps=1.0, duration_s=1.0, seed=0)
