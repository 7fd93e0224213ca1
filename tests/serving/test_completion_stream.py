from __future__ import annotations

import itertools

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.serving.completion_stream import CompletionStream, error_message, output_tokens_of


def event(value: object) -> bytes:
    return b"data: " + orjson.dumps(value) + b"\n\n"


def chat(content: str, finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}]})


ROLE = event({"choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]})
USAGE = event({"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 3, "total_tokens": 8}})
DONE = b"data: [DONE]\n\n"
ANSWER = ROLE + chat(" sea") + chat(' "error": data: ') + chat(" ship", "stop")


def fed(data: bytes, cuts: list[int] | None = None) -> CompletionStream:
    stream = CompletionStream()
    edges = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts or [])})
    for i, (start, end) in enumerate(itertools.pairwise(edges)):
        stream.feed(data[start:end], float(i))
    return stream


@given(st.lists(st.integers(0, 10_000), max_size=20))
def test_a_whole_answer_cut_anywhere(cuts: list[int]) -> None:
    stream = fed(ANSWER + USAGE + DONE, cuts)
    assert stream.finished
    assert stream.output_tokens == 3
    assert stream.error == ""
    assert stream.first_token_s is not None
    assert stream.last_data_s is not None
    assert stream.first_token_s <= stream.last_data_s


def test_tokens_are_counted_where_usage_is_not_sent() -> None:
    assert fed(ANSWER + DONE).output_tokens == 3


def test_the_role_is_not_the_first_token() -> None:
    stream = CompletionStream()
    stream.feed(ROLE, 1.0)
    assert stream.first_token_s is None
    stream.feed(chat(" sea"), 2.0)
    assert stream.first_token_s == 2.0


def test_text_completions_reasoning_and_tool_calls_are_content() -> None:
    deltas: tuple[dict[str, object], ...] = ({"reasoning_content": "a"}, {"tool_calls": [{}]})
    for choice in ({"text": "a"}, *({"delta": delta} for delta in deltas)):
        assert fed(event({"choices": [choice]})).first_token_s is not None


def test_a_stream_that_breaks_off_is_not_finished() -> None:
    stream = fed(ANSWER[:-30])
    assert not stream.finished
    assert stream.first_token_s is not None


def test_an_error_event_is_found_and_quoted_text_is_not_one() -> None:
    assert fed(ANSWER + event({"error": {"message": "engine died"}})).error == "engine died"
    assert fed(ANSWER + DONE).error == ""


def test_usage_counts_before_events() -> None:
    stream = fed(ROLE)
    for i in range(50):
        stream.feed(chat(" sea"), float(i))
    stream.feed(USAGE + DONE, 50.0)
    assert stream.output_tokens == 3  # usage, not the count, has the last word


def test_whole_answers_need_usage() -> None:
    assert output_tokens_of(b'{"usage":{"completion_tokens":4}}') == 4
    for body in (b"", b"[]", b"{}", b'{"usage":null}'):
        with pytest.raises(ValueError, match="usage"):
            output_tokens_of(body)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"error":{"message":"no\\n such model"}}', "no such model"),
        (b'{"object":"error","message":"old vllm"}', "old vllm"),
        (b'{"error":"plain"}', "plain"),
        (b"<html>bad gateway</html>", "<html>bad gateway</html>"),
        (b"[1]", "[1]"),
        (b"\xff", "\ufffd"),
    ],
)
def test_error_messages_of_all_kinds(body: bytes, message: str) -> None:
    assert error_message(body) == message
