"""Counting what passes, however the bytes are cut."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.tap import ResponsesTap, StreamTap, Usage, calls_tool, read_usage
from tests.serving.backends import events
from tests.serving.engine_answers import sent


def fed(text: bytes, cuts: list[int], kind: type[StreamTap] = StreamTap) -> StreamTap:
    tap = kind()
    edges = [0, *sorted({cut % (len(text) + 1) for cut in cuts}), len(text)]
    for start, end in itertools.pairwise(edges):
        if end > start:
            tap.feed(text[start:end])
    return tap


@given(count=st.integers(0, 30), usage=st.booleans(), cuts=st.lists(st.integers(0, 10_000), max_size=60))
def test_events_and_usage_do_not_depend_on_the_cuts(count: int, usage: bool, cuts: list[int]) -> None:
    tap = fed(b"".join(events(count, usage=usage)), cuts)
    assert tap.events == count + 2 + usage
    assert tap.usage() == (Usage(11, count, 4) if usage else None)
    assert tap.at_boundary
    assert tap.complete
    if not usage:
        assert tap.estimated_tokens(chat=True) == max(count, 1)


@given(
    count=st.integers(0, 20),
    padding=st.integers(0, 9000),
    end=st.sampled_from(["completed", "incomplete", "failed", "output_text.done"]),
    cuts=st.lists(st.integers(0, 20_000), max_size=40),
)
def test_responses_end_with_a_named_event(count: int, padding: int, end: str, cuts: list[int]) -> None:
    text = 'say "usage": {"input_tokens": 1} or \nevent: response.completed\n' + "x" * padding
    usage = {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": count}
    told = [{"type": "response.output_text.delta", "delta": text}] * (count + 8)
    last = {"response": {"output": text, "usage": usage, "user": None}, "type": f"response.{end}"}
    tap = fed(b"".join(sent(*told, last, names=True)), cuts, ResponsesTap)
    assert tap.complete is (end in {"completed", "incomplete"})
    assert tap.usage() == Usage(9, count, 2)
    assert tap.events == count + 9
    assert tap.estimated_tokens(chat=True) == count + 1
    assert tap.at_boundary


def test_nothing_yet() -> None:
    tap = StreamTap()
    assert tap.at_boundary
    assert tap.estimated_tokens(chat=True) == 0
    assert tap.usage() is None


@pytest.mark.parametrize(
    ("sent", "whole"),
    [(b"data: x\n\n", True), (b"data: x\r\n\r\n", True), (b"data: x\n", False), (b"data: {", False)],
)
def test_boundaries(sent: bytes, whole: bool) -> None:
    tap = StreamTap()
    tap.feed(sent)
    assert tap.at_boundary is whole


def test_line_ends_of_both_kinds_are_events() -> None:
    tap = StreamTap()
    tap.feed(b"data: a\r\n\r\n: comment\r\n\r\ndata:b\r\n\r\n")
    assert tap.events == 2


def test_memory_is_bounded() -> None:
    tap = StreamTap()
    for _ in range(10_000):
        tap.feed(b"data: xxxxxxxxxxxxxxxxxxxxxxxxxxxxx\n\n")
    assert sum(len(piece) for piece in tap._kept) < 8192


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"[]",
        b"{",
        b'{"usage":null}',
        b'{"usage":{}}',
        b'{"usage":{"prompt_tokens":1}}',
        b'{"usage":{"prompt_tokens":-1,"completion_tokens":1}}',
        b'{"usage":{"prompt_tokens":true,"completion_tokens":1}}',
        b'{"usage":{"prompt_tokens":1e400,"completion_tokens":1}}',
    ],
)
def test_rubbish_is_no_usage(document: bytes) -> None:
    assert read_usage(document) is None


def test_cached_tokens_are_optional() -> None:
    assert read_usage(b'{"usage":{"prompt_tokens":5,"completion_tokens":2}}') == Usage(5, 2, 0)
    details = b'"prompt_tokens_details":{"cached_tokens":"x"}'
    odd = b'{"usage":{"prompt_tokens":5,"completion_tokens":2,' + details + b"}}"
    assert read_usage(odd) == Usage(5, 2, 0)


@pytest.mark.parametrize(
    ("sent", "called"),
    [
        (b'data: {"choices":[{"delta":{},"finish_reason":"tool_calls"}]}\n\ndata: [DONE]\n\n', True),
        (b'data: {"choices":[{"delta":{},"finish_reason": "function_call"}]}\n\ndata: [DONE]\n\n', True),
        (b'data: {"choices":[{"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n', False),
        (b'data: {"text":"\\"finish_reason\\":\\"tool_calls\\""}\n\ndata: [DONE]\n\n', False),
    ],
)
def test_a_tool_call_is_seen_at_the_end(sent: bytes, called: bool) -> None:
    assert fed(sent, [7, 40]).called_tool is called
    assert calls_tool(sent) is called


def test_embeddings_and_responses_have_other_names_for_it() -> None:
    assert read_usage(b'{"usage":{"prompt_tokens":5,"total_tokens":5}}') == Usage(5, 0, 0)
    assert read_usage(b'{"usage":{"input_tokens":5,"output_tokens":2}}') == Usage(5, 2, 0)
    assert read_usage(b'{"usage":{"prompt_tokens":5,"total_tokens":4}}') is None


def test_a_large_answer_is_searched_not_parsed() -> None:
    vectors = b",".join([b"0.25"] * 30_000)
    answer = b'{"data":[' + vectors + b'],"usage":{"prompt_tokens":5,"total_tokens":5},"x":"\xff"}'
    assert read_usage(answer) == Usage(5, 0, 0)
