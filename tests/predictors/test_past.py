"""What the past says: the same in bulk as live, and never from the future."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.predictors.features import HISTORY_FEATURES
from steersman.predictors.past import NOMINAL_TPOT_S, NOMINAL_TTFT_S, Past, ToolHistory, causal_past
from steersman.traces.schema import Request, ToolChoice
from steersman.traces.trace import Trace

CALL = HISTORY_FEATURES.index("tool_call_likelihood")
LAST = HISTORY_FEATURES.index("session_output_tokens")

REQUESTS = st.lists(
    st.builds(
        Request,
        request_id=st.just(""),
        arrival_s=st.floats(0, 60),
        input_tokens=st.just(10),
        output_tokens=st.none() | st.integers(0, 2000),
        tenant=st.sampled_from(["a", "b"]),
        model=st.sampled_from(["m", "n"]),
        tools=st.integers(0, 2),
        tool_choice=st.sampled_from(ToolChoice),
        session_id=st.sampled_from([None, "s", "t"]),
        called_tool=st.none() | st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


def make_trace(requests: list[Request]) -> Trace:
    ordered = sorted(requests, key=lambda request: request.arrival_s)
    return Trace.from_requests(
        "t", [dataclasses.replace(request, request_id=f"r{i}") for i, request in enumerate(ordered)]
    )


@given(REQUESTS)
@settings(deadline=None)
def test_the_bulk_form_equals_a_live_service(requests: list[Request]) -> None:
    trace = make_trace(requests)
    bulk = causal_past(trace)
    past = Past()
    rows = list(trace.requests())
    ends = sorted(
        (row.arrival_s + NOMINAL_TTFT_S + row.output_tokens * NOMINAL_TPOT_S, i)
        for i, row in enumerate(rows)
        if row.output_tokens
    )
    for i, row in enumerate(rows):
        while ends and ends[0][0] <= row.arrival_s:
            ended = rows[ends.pop(0)[1]]
            past.end(ended, ended.output_tokens or 0, ended.called_tool)
        assert tuple(bulk[i]) == past.begin(row)


@given(REQUESTS, st.data())
@settings(deadline=None)
def test_the_future_changes_nothing(requests: list[Request], data: st.DataObject) -> None:
    trace = make_trace(requests)
    row = data.draw(st.integers(0, len(trace) - 1))
    outputs, called = trace.output_tokens.copy(), trace.called_tool.copy()
    outputs[row:] = 777
    called[row:] = 1
    changed = dataclasses.replace(trace, output_tokens=outputs, called_tool=called)
    assert np.array_equal(causal_past(trace)[: row + 1], causal_past(changed)[: row + 1])


def test_a_tool_call_is_as_likely_as_the_tenants_were() -> None:
    tools = ToolHistory()
    assert tools.likelihood("a") == 0.5
    for _ in range(1000):
        tools.observe("a", True)
        tools.observe("b", False)
    assert tools.likelihood("a") > 0.99
    assert tools.likelihood("b") < 0.01
    for _ in range(600):  # a habit changes
        tools.observe("a", False)
    assert tools.likelihood("a") < 0.45


@pytest.mark.parametrize(
    ("tools", "choice", "likelihood"),
    [
        (0, ToolChoice.AUTO, 0.0),
        (3, ToolChoice.NONE, 0.0),
        (3, ToolChoice.REQUIRED, 1.0),
        (3, ToolChoice.AUTO, 0.5),
    ],
)
def test_what_the_request_says_of_tools_comes_first(
    tools: int, choice: ToolChoice, likelihood: float
) -> None:
    request = Request("r", 0.0, 10, tools=tools, tool_choice=choice)
    assert Past().begin(request)[CALL] == likelihood


def test_the_sessions_last_answer_is_remembered() -> None:
    past = Past()
    request = Request("r", 0.0, 10, session_id="s")
    assert past.begin(request)[LAST] == 0
    past.end(request, 70, None)
    assert past.begin(request)[LAST] == 70
