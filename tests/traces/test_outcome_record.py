"""Records survive JSON, non-finite numbers and all, and carry no text."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from steersman.traces.outcome_record import OutcomeRecord
from steersman.traces.schema import Decision, Outcome, Request, Status
from tests.traces.strategies import requests

any_float = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def records(draw: st.DrawFn) -> OutcomeRecord:
    request = draw(requests(max_size=3).filter(bool))[-1]
    n = draw(st.integers(0, 4))
    floats = hnp.arrays(np.float64, (n, 5), elements=any_float)
    outcome = Outcome(
        request.request_id,
        draw(st.sampled_from(Status)),
        replica=0,
        input_tokens=request.input_tokens,
        output_tokens=draw(st.integers(0, 100)),
        cached_tokens=draw(st.integers(0, 100)),
        arrival_s=request.arrival_s,
        ttft_s=draw(any_float),
        tpot_s=draw(any_float),
        e2e_s=draw(any_float),
        retries=draw(st.integers(0, 3)),
    )
    scores = draw(st.none() | hnp.arrays(np.float32, n, elements=st.floats(width=32)))
    chance = draw(st.floats(0, 1))
    decision = Decision(draw(st.integers(-1, 3)), "p2c", "v1", chance, "stale", scores, chance < 0.5)
    return OutcomeRecord.of(
        request,
        decision,
        outcome,
        arrival_unix_s=draw(st.floats(0, 2e9)),
        replica_ids=tuple(f"r{i}" for i in range(n)),
        state=draw(floats),
        match_tokens=draw(floats)[:, 0],  # not contiguous
        mask=draw(hnp.arrays(np.bool_, n)),
        request_features=draw(hnp.arrays(np.float32, 4, elements=st.floats(width=32))),
        output_p50=draw(any_float),
        error=draw(st.sampled_from(["", "timeout"])),
        arm=draw(st.sampled_from(["", "champion", "challenger"])),
        prompt_text=draw(st.none() | st.text(max_size=5)),
        affinity=draw(st.sampled_from(["", "stayed"])),
        held_s=draw(any_float),
        bundle_version=draw(st.text("abc0123", max_size=4)),
    )


def assert_same(a: OutcomeRecord, b: OutcomeRecord) -> None:
    for field in dataclasses.fields(OutcomeRecord):
        left, right = getattr(a, field.name), getattr(b, field.name)
        if isinstance(left, np.ndarray):
            assert left.dtype == right.dtype, field.name
            np.testing.assert_array_equal(left, right.reshape(left.shape), err_msg=field.name)
        elif isinstance(left, float) and math.isnan(left):
            assert math.isnan(right), field.name
        else:
            assert (left, type(left)) == (right, type(right)), field.name


@given(records())
def test_json_round_trip(record: OutcomeRecord) -> None:
    data = record.to_json()
    assert b"\n" not in data
    assert_same(record, OutcomeRecord.from_json(data))


@given(records())
def test_request_comes_back(record: OutcomeRecord) -> None:
    request = record.request(arrival_s=1.5)
    assert isinstance(request, Request)
    assert (request.request_id, request.arrival_s) == (record.request_id, 1.5)
    assert request.block_hashes == record.block_hashes


def test_defaults_are_enough_for_a_refused_request() -> None:
    record = OutcomeRecord("r", 0.0, 1, status=Status.REJECTED, error="rate_limited")
    assert_same(record, OutcomeRecord.from_json(record.to_json()))


def test_fields_of_later_versions_are_ignored() -> None:
    record = OutcomeRecord.from_json(b'{"request_id":"r","arrival_unix_s":1,"input_tokens":2,"new":3}')
    assert record.input_tokens == 2


@pytest.mark.parametrize(
    "data",
    [b"", b"[]", b"{}", b"nonsense", b'{"request_id":"r","arrival_unix_s":"x","input_tokens":2}'],
)
def test_bad_data_is_a_value_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        OutcomeRecord.from_json(data)


def test_text_has_one_place_which_is_empty() -> None:
    names = {field.name for field in dataclasses.fields(OutcomeRecord)}
    assert not names & {"prompt", "messages", "text", "content", "completion"}
    assert OutcomeRecord("r", 0.0, 1).prompt_text is None
    assert b"prompt_text" not in OutcomeRecord("r", 0.0, 1).to_json()


def test_what_is_not_known_takes_no_space() -> None:
    written = OutcomeRecord("r", 0.0, 1).to_json()
    assert written == b'{"request_id":"r","arrival_unix_s":0.0,"input_tokens":1}'


def test_records_written_out_in_full_are_read() -> None:
    data = b'{"request_id":"r","arrival_unix_s":1,"input_tokens":2,"ttft_s":"nan","state":[]}'
    assert_same(OutcomeRecord.from_json(data), OutcomeRecord("r", 1.0, 2))
