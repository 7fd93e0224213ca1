"""Tenant history: right quantiles, bounded, and never from the future."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.history import (
    NOMINAL_TPOT_S,
    NOMINAL_TTFT_S,
    RollingQuantiles,
    TenantHistory,
    causal_quantiles,
)
from steersman.traces.schema import Request
from steersman.traces.trace import Trace


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 20), st.floats(0, 1))
def test_rolling_quantiles_are_numpys_of_the_last_values(
    values: list[int], window: int, level: float
) -> None:
    rolling = RollingQuantiles(window)
    for value in values:
        rolling.add(value)
    assert rolling.quantile(level) == pytest.approx(np.quantile(values[-window:], level), abs=1e-9)
    assert len(rolling) == min(len(values), window)


def test_tenants_and_models_are_apart() -> None:
    history = TenantHistory()
    history.observe("a", "m", 100)
    history.observe("b", "m", 300)
    history.observe("a", "n", 500)
    assert history.quantiles("a", "m") == (100, 100)
    assert history.quantiles("b", "m") == (300, 300)
    assert history.quantiles("c", "m") == (0, 0)


def test_the_least_recently_active_tenants_are_forgotten() -> None:
    history = TenantHistory(most_tenants=2)
    for tenant in ("a", "b", "a", "c"):
        history.observe(tenant, "m", 10)
    assert len(history) == 2
    assert history.quantiles("a", "m") == (10, 10)
    assert history.quantiles("b", "m") == (0, 0)


def test_an_empty_answer_teaches_nothing() -> None:
    history = TenantHistory()
    history.observe("a", "m", 0)
    assert len(history) == 0


REQUESTS = st.lists(
    st.tuples(
        st.floats(0, 60),
        st.one_of(st.none(), st.integers(0, 2000)),
        st.sampled_from(["a", "b"]),
        st.sampled_from(["m", "n"]),
    ),
    min_size=1,
    max_size=40,
)


def make_trace(rows: list[tuple[float, int | None, str, str]]) -> Trace:
    requests = [
        Request(f"r{i}", arrival, 10, output_tokens=output, tenant=tenant, model=model)
        for i, (arrival, output, tenant, model) in enumerate(sorted(rows, key=lambda row: row[0]))
    ]
    return Trace.from_requests("t", requests)


@given(REQUESTS, st.integers(1, 5))
def test_the_bulk_form_equals_a_live_service(
    rows: list[tuple[float, int | None, str, str]], window: int
) -> None:
    trace = make_trace(rows)
    bulk = causal_quantiles(trace, window=window)
    requests = list(trace.requests())
    for i, request in enumerate(requests):
        ended = sorted(
            (r.arrival_s + NOMINAL_TTFT_S + r.output_tokens * NOMINAL_TPOT_S, j)
            for j, r in enumerate(requests)
            if r.output_tokens is not None
        )
        history = TenantHistory(window=window)
        for end_s, j in ended:
            if end_s <= request.arrival_s and j < i:
                earlier = requests[j]
                history.observe(earlier.tenant, earlier.model, earlier.output_tokens or 0)
        assert tuple(bulk[i]) == history.quantiles(request.tenant, request.model)


@given(REQUESTS, st.data())
def test_the_future_changes_nothing(
    rows: list[tuple[float, int | None, str, str]], data: st.DataObject
) -> None:
    trace = make_trace(rows)
    row = data.draw(st.integers(0, len(trace) - 1))
    outputs = trace.output_tokens.copy()
    outputs[row:] = 777
    changed = dataclasses.replace(trace, output_tokens=outputs)
    assert np.array_equal(causal_quantiles(trace)[: row + 1], causal_quantiles(changed)[: row + 1])
