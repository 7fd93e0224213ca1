"""What the past says, compiled: the same as `predictors/past.py` says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.env import past as compiled
from steersman.predictors import past as plain
from steersman.predictors.features import HISTORY_FEATURES
from steersman.predictors.history import WINDOWS
from steersman.traces.schema import Request, ToolChoice
from steersman.traces.trace import Trace


def drawn(seed: int, requests: int, tenants: int) -> Trace:
    """Some tenants' answers drift in length, some requests never end, and time stands still at times."""
    rng = np.random.default_rng(seed)
    arrivals_s = np.cumsum(rng.choice([0.0, 0.05, 0.7], size=requests))
    return Trace.from_requests(
        "t",
        [
            Request(
                f"r{i}",
                float(arrival_s),
                10,
                output_tokens=None if rng.random() < 0.1 else int(rng.lognormal(3.0 + i / requests)),
                tenant=f"tenant {int(tenants * rng.random() ** 3)}",
                model="m" if rng.random() < 0.8 else "n",
                session_id=None if rng.random() < 0.5 else f"s{int(rng.integers(9))}",
                tools=int(rng.integers(2)),
                tool_choice=ToolChoice.AUTO,
                called_tool=bool(rng.integers(2)),
            )
            for i, arrival_s in enumerate(arrivals_s)
        ],
    )


def assert_same(trace: Trace) -> None:
    # A power may differ by a last digit between machine code and Python.
    np.testing.assert_allclose(compiled.causal_past(trace), plain.causal_past(trace), rtol=1e-12, atol=0)


@given(seed=st.integers(0, 2**32 - 1), requests=st.integers(1, 120), tenants=st.integers(1, 4))
@settings(deadline=None)
def test_it_says_what_the_plain_form_says(seed: int, requests: int, tenants: int) -> None:
    assert_same(drawn(seed, requests, tenants))


def test_windows_that_are_full_forget_their_oldest() -> None:
    trace = drawn(1, 3 * WINDOWS[-1], 2)
    assert compiled.causal_past(trace)[:, HISTORY_FEATURES.index("tenant_answers")].max() == WINDOWS[-1]
    assert_same(trace)


def test_more_tenants_than_are_remembered_are_left_to_the_plain_form(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trace = drawn(2, 200, 4)
    monkeypatch.setattr(compiled, "MOST_TENANTS", 2)
    assert np.array_equal(compiled.causal_past(trace), plain.causal_past(trace))


def test_an_empty_trace_has_no_past() -> None:
    for form in (compiled, plain):
        assert form.causal_past(Trace.from_requests("t", [])).shape == (0, len(HISTORY_FEATURES))
