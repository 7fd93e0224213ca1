"""Training and serving compute the same features: bulk = one by one, a trace's row = its request."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.samples import sample_observation
from steersman.env.bulk import output_quantiles, trace_length_features
from steersman.predictors.features import POOL_FEATURES, REPLICA_INDEX, length_features, pool_features
from steersman.predictors.length import FallbackLength
from steersman.predictors.past import causal_past
from steersman.traces.schema import Priority, QuestionType, Request, ToolChoice
from steersman.traces.trace import Trace

REQUESTS = st.lists(
    st.builds(
        Request,
        request_id=st.just(""),
        arrival_s=st.floats(0, 1000),
        input_tokens=st.integers(1, 200_000),
        output_tokens=st.none() | st.integers(1, 20_000),
        max_tokens=st.none() | st.integers(1, 100_000),
        model=st.sampled_from(["", "m", "n"]),
        tenant=st.sampled_from(["", "a", "b"]),
        priority=st.sampled_from(Priority),
        stream=st.booleans(),
        tools=st.integers(0, 200),
        tool_choice=st.sampled_from(ToolChoice),
        has_code=st.booleans(),
        question_type=st.sampled_from(QuestionType),
        question_bytes=st.integers(0, 10**6),
        asked_tokens=st.integers(0, 10**4),
        wording=st.floats(-3, 3),
        session_id=st.sampled_from([None, "s", "t"]),
        called_tool=st.none() | st.booleans(),
        turns=st.integers(1, 500),
        lora_adapter=st.none() | st.sampled_from(["x", "y"]),
        block_hashes=st.lists(st.integers(0, 2**63 - 1), max_size=5).map(tuple),
        block_tokens=st.just(16),
        hour_of_day=st.none() | st.floats(0, 24, exclude_max=True),
    ),
    min_size=1,
    max_size=30,
).map(
    lambda requests: [
        Request(**{**{f: getattr(r, f) for f in Request.__slots__}, "request_id": f"r{i}"})
        for i, r in enumerate(requests)
    ]
)


@given(REQUESTS)
@settings(deadline=None)
def test_a_traces_features_are_its_requests_features(requests: list[Request]) -> None:
    trace = Trace.from_requests("t", requests)
    past = causal_past(trace)
    bulk = trace_length_features(trace)
    single = [length_features(trace.request(row), past[row].tolist()) for row in range(len(trace))]
    assert bulk.dtype == np.float32
    assert np.array_equal(bulk, np.stack(single))


@given(REQUESTS)
@settings(deadline=None)
def test_predictions_in_bulk_are_predictions_one_by_one(requests: list[Request]) -> None:
    trace = Trace.from_requests("t", requests)
    features = trace_length_features(trace)
    bulk = output_quantiles(trace, FallbackLength())
    for row in range(len(trace)):
        assert bulk[row].tolist() == FallbackLength().predict(features[row : row + 1])[0, :2].tolist()


def test_rows_beyond_a_chunk_are_predicted_too(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = Trace.from_requests(
        "t", [Request(f"r{i}", float(i), 10, max_tokens=i + 1) for i in range(10)]
    )
    monkeypatch.setattr("steersman.env.bulk.CHUNK_ROWS", 3)
    assert output_quantiles(trace, FallbackLength())[:, 0].tolist() == list(range(1, 11))


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 70), allowed=st.integers(0, 70))
@settings(max_examples=40, deadline=None)
def test_a_pools_features_are_those_of_who_may_be_chosen(seed: int, n: int, allowed: int) -> None:
    seen = sample_observation(np.random.default_rng(seed), n, allowed=min(n, max(allowed, 1)))
    if allowed == 0:
        seen.mask[:] = False
    pool = dict(zip(POOL_FEATURES, pool_features(seen.replicas, seen.mask).tolist(), strict=True))
    rows = seen.replicas[seen.mask]
    assert pool["candidates"] == len(rows)
    if not len(rows):
        assert pool["speed_ratio"] == 1.0
        assert sum(pool.values()) == 1.0
        return
    of = {name: rows[:, column] for name, column in REPLICA_INDEX.items()}
    assert pool["mean_tpot_share"] == pytest.approx(of["tpot_share"].mean(dtype=np.float64), rel=1e-6)
    assert pool["mean_age_s"] == pytest.approx(of["age_s"].mean(dtype=np.float64), rel=1e-6)
    assert pool["best_match_fraction"] == of["match_fraction"].max()
    quickest, slowest = of["prefill_token_s"].min(), of["prefill_token_s"].max()
    assert pool["speed_ratio"] == pytest.approx(slowest / quickest, rel=1e-6)


def test_a_pools_feature_that_is_no_number_shows() -> None:
    seen = sample_observation(np.random.default_rng(0), 5, allowed=5)
    seen.replicas[2] = np.nan
    assert np.isnan(pool_features(seen.replicas, seen.mask)).sum() > 5
