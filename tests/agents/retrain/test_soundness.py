"""What a log must be like to be learned from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.retrain.settings import SoundnessSettings
from steersman.agents.retrain.soundness import (
    DECISION,
    DOUBLE,
    LABELS,
    LAYOUT,
    NUMBERS,
    TIME,
    fault,
    screen,
)
from steersman.traces.errors import TraceError
from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Status
from tests.support.simulated_log import START_UNIX_S

Log = list[OutcomeRecord]
SETTINGS = SoundnessSettings(least_requests=500, least_span_s=10.0)
NOW_S = START_UNIX_S + 86_400.0


def refusal(records: Sequence[OutcomeRecord], settings: SoundnessSettings = SETTINGS) -> str:
    with pytest.raises(TraceError) as told:
        screen(records, settings, now_unix_s=NOW_S)
    message = str(told.value)
    assert "\n" not in message
    return message


def changed(records: Log, share: float, **values: Any) -> Log:
    """Some of them with other values."""
    every = round(1.0 / share)
    return [replace(r, **values) if i % every == 0 else r for i, r in enumerate(records)]


def test_a_sound_log_is_taken_whole_and_by_arrival(logged: Log) -> None:
    screened = screen(logged[::-1], SETTINGS, now_unix_s=NOW_S)
    assert len(screened.records) == screened.read == len(logged)
    assert [r.request_id for r in screened.records] == [r.request_id for r in logged]
    assert not screened.left_out


def test_too_little_is_refused(logged: Log) -> None:
    assert "499 sound requests ended well, 500 are needed" in refusal(logged[:499])
    longer = SETTINGS.model_copy(update={"least_span_s": 1e5})
    assert "100000 s are needed (soundness.least_span_s)" in refusal(logged, longer)
    assert "0 sound requests" in refusal([])


NAN_ROW = np.full(3, np.nan, dtype=np.float32)
FAULTS: list[tuple[str, dict[str, Any]]] = [
    (TIME, {"arrival_unix_s": 12.0}),
    (TIME, {"arrival_unix_s": NOW_S + 1e6}),
    (TIME, {"arrival_unix_s": math.nan}),
    (NUMBERS, {"e2e_s": math.nan}),
    (NUMBERS, {"ttft_s": math.inf}),
    (LAYOUT, {"request_features": NAN_ROW}),
    (LAYOUT, {"state": np.zeros((1, 3))}),
    (LABELS, {"output_tokens": 0}),
    (LABELS, {"output_tokens": 10**9}),
    (LABELS, {"input_tokens": -5}),
    (LABELS, {"ttft_s": -1.0}),
    (LABELS, {"ttft_s": 1e4}),
    (LABELS, {"e2e_s": 1e7}),
    (LABELS, {"tpot_s": 50.0, "output_tokens": 1000}),
    (DECISION, {"propensity": 1.5}),
    (DECISION, {"propensity": 0.0}),
    (DECISION, {"choice": 99}),
]


@pytest.mark.parametrize(("why", "values"), FAULTS, ids=[f"{why}-{list(v)}" for why, v in FAULTS])
def test_what_cannot_be_true_is_left_out_and_much_of_it_refused(
    why: str, values: dict[str, Any], logged: Log
) -> None:
    few = changed(logged, 0.005, **values)
    screened = screen(few, SETTINGS, now_unix_s=NOW_S)
    assert screened.left_out == {why: 5}
    assert len(screened.records) == len(logged) - 5
    assert f"have {why}, more than 1% (soundness.most_faulty)" in refusal(changed(logged, 0.1, **values))


def test_a_masked_choice_and_nan_features_are_faults(logged: Log) -> None:
    record = logged[0]
    mask = record.mask.copy()
    mask[record.choice] = False
    assert fault(replace(record, mask=mask), NOW_S) == DECISION
    features = record.request_features.copy()
    features[0] = np.nan
    assert fault(replace(record, request_features=features), NOW_S) == NUMBERS
    assert not fault(replace(record, status=Status.FAILED, ttft_s=math.nan), NOW_S)


def test_doubled_records_are_left_out_and_many_refused(logged: Log) -> None:
    screened = screen([*logged, *logged[:20]], SETTINGS, now_unix_s=NOW_S)
    assert screened.left_out == {DOUBLE: 20}
    assert len(screened.records) == len(logged)
    assert "(soundness.most_duplicated)" in refusal([*logged, *logged[:200]])


def test_an_outage_is_refused(logged: Log) -> None:
    half = changed(logged, 0.5, status=Status.FAILED)
    failed = [replace(r, status=Status.FAILED) if i < 20 else r for i, r in enumerate(half)]
    assert "served requests failed, more than 50%" in refusal(failed, _few(200))


def test_a_tenant_that_floods_is_refused(logged: Log) -> None:
    one = [replace(r, tenant="greedy" if i % 50 else "other") for i, r in enumerate(logged)]
    assert "tenant 'greedy' sent 98% of all requests" in refusal(one)
    alone = [replace(r, tenant="only") for r in logged]
    assert screen(alone, SETTINGS, now_unix_s=NOW_S).records, "one tenant alone is nobody's victim"
    at_s = logged[500].arrival_unix_s
    flood = [
        replace(
            logged[i % 1000],
            request_id=f"f{i}",
            tenant="greedy",
            arrival_unix_s=at_s,
            decided_at_s=math.nan,
        )
        for i in range(1500)
    ]
    others = [replace(r, tenant="other") for r in logged]
    said = refusal([*others, *(replace(r, status=Status.FAILED) for r in flood)], _few(500, failed=1.0))
    assert "most of them in a burst: begin after it with --since" in said


def test_a_clock_that_jumps_is_refused_and_told_where(logged: Log) -> None:
    jumped = [
        replace(r, arrival_unix_s=r.arrival_unix_s + (3600.0 if i >= 600 else 0.0))
        for i, r in enumerate(logged)
    ]
    said = refusal(jumped)
    assert "the clock jumped 1 times, last by +3600 s" in said
    since_s = float(said.rsplit("--since ", 1)[1])
    rest = [r for r in jumped if r.arrival_unix_s >= since_s - 1.0]
    assert len(screen(rest, _few(300), now_unix_s=NOW_S).records) == 400


def test_all_reasons_are_told_at_once(logged: Log) -> None:
    said = refusal(changed(changed(logged, 0.2, e2e_s=math.nan), 0.1, propensity=9.0), _few(990))
    assert NUMBERS in said
    assert "sound requests ended well" in said


@given(
    st.sampled_from(["ttft_s", "tpot_s", "e2e_s", "queued_s", "propensity", "arrival_unix_s"]),
    st.floats(allow_nan=True, allow_infinity=True),
)
def test_no_value_makes_it_fail(name: str, value: float) -> None:
    record = OutcomeRecord(request_id="r", arrival_unix_s=START_UNIX_S, input_tokens=5)
    changed_one: dict[str, Any] = {name: value}
    assert isinstance(fault(replace(record, **changed_one), NOW_S), str)


def _few(count: int, failed: float = 0.5) -> SoundnessSettings:
    return SETTINGS.model_copy(update={"least_requests": count, "most_failed": failed})
