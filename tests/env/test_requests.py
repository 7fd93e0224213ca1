from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env.profiles import load_profile
from steersman.env.requests import request_table
from steersman.predictors import analytic, ledger
from steersman.predictors.features import length_features, request_features
from steersman.predictors.objectives import slo_s
from steersman.predictors.past import causal_past
from steersman.traces.errors import TraceError
from steersman.traces.schema import Priority, QuestionType, Request
from steersman.traces.trace import Trace

STATE = np.stack(
    [ledger.new_row(load_profile(f"{gpu}-llama-3.1-8b")) for gpu in ("a100", "h100", "l40s")]
)


@st.composite
def traces(draw: st.DrawFn) -> Trace:
    requests = []
    for number in range(draw(st.integers(1, 12))):
        blocks = tuple(range(draw(st.integers(0, 5))))
        requests.append(
            Request(
                request_id=f"r{number}",
                arrival_s=draw(st.floats(0, 100)),
                input_tokens=draw(st.integers(1, 50_000)),
                output_tokens=draw(st.integers(0, 2000)),
                max_tokens=draw(st.none() | st.integers(1, 4096)),
                tenant=draw(st.sampled_from(["", "a"])),
                priority=draw(st.sampled_from(Priority)),
                stream=draw(st.booleans()),
                tools=draw(st.integers(0, 9)),
                has_code=draw(st.booleans()),
                question_type=draw(st.sampled_from(QuestionType)),
                turns=draw(st.integers(1, 9)),
                lora_adapter=draw(st.sampled_from([None, "x"])),
                block_hashes=blocks,
                block_tokens=64 if blocks else 0,
                hour_of_day=draw(st.none() | st.floats(0, 23.9)),
            )
        )
    return Trace.from_requests("t", requests)


@settings(max_examples=100, deadline=None)
@given(traces())
def test_columns_are_what_the_router_computes_one_by_one(trace: Trace) -> None:
    quantiles = np.tile((30.0, 90.0), (len(trace), 1))
    table = request_table(trace, STATE, output_quantiles=quantiles)
    past = causal_past(trace)
    for row, request in enumerate(trace.requests()):
        length = length_features(request, past[row].tolist())
        ttft_slo_s, tpot_slo_s = slo_s(STATE, float(request.input_tokens))
        expected = request_features(length, 30.0, 90.0, ttft_slo_s, tpot_slo_s)
        assert np.array_equal(table.features[row], expected)
        assert table.ttft_slo_s[row] == ttft_slo_s
        assert table.weight[row] == (1.0 if request.priority <= Priority.SEMI_INTERACTIVE else 0.25)
    assert table.features.dtype == np.float32


def test_service_levels_are_looser_for_large_models() -> None:
    large = np.stack([ledger.new_row(load_profile("a100-tp4-llama-3.1-70b"))])
    assert slo_s(STATE, 10.0)[1] == 0.05
    assert slo_s(large, 10.0)[1] == 0.1


@given(st.integers(1, 9), st.integers(0, 10**6))
def test_service_levels_follow_the_median_replica(replicas: int, prompt_tokens: int) -> None:
    slowness = np.random.default_rng(replicas).uniform(0.5, 5.0, replicas)
    state = np.repeat(STATE[:1], replicas, axis=0)
    state[:, ledger.PREFILL_TOKEN_S] *= slowness
    unloaded = analytic.unloaded_ttft_s(state, np.full(1, float(prompt_tokens)))
    assert slo_s(state, float(prompt_tokens))[0] == max(1.0, 3.0 * float(np.median(unloaded)))


def test_without_predictions_the_traces_quantiles_stand_in() -> None:
    trace = Trace.from_requests(
        "t", [Request(f"r{i}", float(i), 10, output_tokens=i + 1) for i in range(11)]
    )
    table = request_table(trace, STATE)
    assert np.all(table.output_p50 == 6.0)


def test_unknown_output_lengths_are_refused_by_name() -> None:
    trace = Trace.from_requests("t", [Request("r0", 0.0, 10)])
    with pytest.raises(TraceError, match="'r0' has no output_tokens"):
        request_table(trace, STATE)


def test_predictions_must_fit_the_trace() -> None:
    trace = Trace.from_requests("t", [Request("r0", 0.0, 10, output_tokens=3)])
    with pytest.raises(ValueError, match=r"expected \(1, 2\)"):
        request_table(trace, STATE, output_quantiles=np.ones((2, 2)))
