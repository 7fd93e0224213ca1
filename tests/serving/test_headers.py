"""Hints are validated, and headers of one hop stay on it."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.errors import ApiError
from steersman.serving.headers import (
    NO_HINTS,
    downstream_headers,
    header_bytes,
    parse_hints,
    upstream_headers,
)
from steersman.traces.schema import Priority


def test_no_hints() -> None:
    assert parse_hints([(b"accept", b"*/*")]) is NO_HINTS


def test_hints_are_read() -> None:
    hints = parse_hints(
        [
            (b"x-session-id", b" abc "),
            (b"x-steersman-tenant", b"team-a"),
            (b"x-llm-d-inference-fairness-id", b"other"),
            (b"x-steersman-priority", b"Batch"),
            (b"x-llm-d-slo-ttft-ms", b"250"),
            (b"x-steersman-slo-tpot-ms", b"12.5"),
        ]
    )
    assert hints.session_id == "abc"
    assert hints.tenant == "team-a"
    assert hints.priority is Priority.BATCH
    assert hints.ttft_slo_s == 0.25
    assert hints.tpot_slo_s == 0.0125


@pytest.mark.parametrize(("text", "priority"), [(b"0", 0), (b"p3", 3), (b"semi-interactive", 1)])
def test_priorities_have_three_spellings(text: bytes, priority: int) -> None:
    assert parse_hints([(b"x-steersman-priority", text)]).priority == priority


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (b"x-steersman-priority", b"urgent"),
        (b"x-steersman-priority", b"4"),
        (b"x-llm-d-slo-ttft-ms", b"fast"),
        (b"x-llm-d-slo-ttft-ms", b"-5"),
        (b"x-llm-d-slo-ttft-ms", b"0"),
        (b"x-llm-d-slo-ttft-ms", b"nan"),
        (b"x-llm-d-slo-tpot-ms", b"1e9999"),
        (b"x-session-id", b"a b"),
        (b"x-session-id", b"x" * 257),
        (b"x-steersman-tenant", "ü".encode()),
    ],
)
def test_a_hint_that_is_not_valid_is_refused(name: bytes, value: bytes) -> None:
    with pytest.raises(ApiError) as raised:
        parse_hints([(name, value)])
    assert raised.value.status == 400
    assert raised.value.code == "invalid_header"
    assert name.decode() in raised.value.message
    assert value.decode("latin-1") not in raised.value.message


OBJECTIVE = b"x-llm-d-inference-objective"


def test_objectives_are_priorities_where_they_are_configured() -> None:
    known = {"chatbot": 0, "nightly": 3}
    assert parse_hints([(OBJECTIVE, b"nightly")], known).priority is Priority.BACKGROUND
    both = [(OBJECTIVE, b"nightly"), (b"x-steersman-priority", b"1")]
    assert parse_hints(both, known).priority is Priority.SEMI_INTERACTIVE
    with pytest.raises(ApiError, match="use one of: chatbot, nightly"):
        parse_hints([(OBJECTIVE, b"nihgtly")], known)
    assert parse_hints([(OBJECTIVE, b"anything")]) == NO_HINTS


@given(st.binary(max_size=40))
def test_any_value_is_read_or_refused(value: bytes) -> None:
    for name in (b"x-session-id", b"x-steersman-priority", b"x-llm-d-slo-ttft-ms"):
        with contextlib.suppress(ApiError):
            parse_hints([(name, value)])


def test_headers_of_this_hop_do_not_travel_upstream() -> None:
    sent = upstream_headers(
        [
            (b"host", b"router"),
            (b"connection", b"close, X-Hop"),
            (b"connection", b"x-other"),
            (b"x-hop", b"1"),
            (b"x-other", b"1"),
            (b"te", b"trailers"),
            (b"transfer-encoding", b"chunked"),
            (b"content-length", b"3"),
            (b"accept-encoding", b"gzip"),
            (b"authorization", b"Bearer client"),
            (b"x-unknown", b"kept"),
        ],
        authorization="",
        request_id="req-1",
    )
    assert sent == [
        (b"authorization", b"Bearer client"),
        (b"x-unknown", b"kept"),
        (b"accept-encoding", b"identity"),
        (b"x-request-id", b"req-1"),
    ]


def test_a_backends_own_key_replaces_the_clients() -> None:
    headers = [(b"authorization", b"Bearer client"), (b"x-request-id", b"mine")]
    sent = upstream_headers(headers, authorization="Bearer own", request_id="req-1")
    assert (b"authorization", b"Bearer own") in sent
    assert b"Bearer client" not in dict(sent).values()
    assert dict(sent)[b"x-request-id"] == b"mine"


def test_headers_of_a_replica_travel_but_for_framing_and_ours() -> None:
    got = downstream_headers(
        [
            (b"content-type", b"application/json"),
            (b"content-length", b"3"),
            (b"transfer-encoding", b"chunked"),
            (b"connection", b"x-private"),
            (b"x-private", b"1"),
            (b"server", b"uvicorn"),
            (b"x-steersman-replica", b"forged"),
            (b"set-cookie", b"a"),
            (b"set-cookie", b"b"),
        ]
    )
    assert got == [(b"content-type", b"application/json"), (b"set-cookie", b"a"), (b"set-cookie", b"b")]


def test_sizes_count_names_and_values() -> None:
    assert header_bytes([(b"ab", b"cde"), (b"f", b"")]) == 6
