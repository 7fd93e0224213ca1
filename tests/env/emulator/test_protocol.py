from __future__ import annotations

import orjson
import pytest

from steersman.env.emulator.protocol import (
    ApiError,
    ChatBody,
    TextBody,
    check_model,
    header_tokens,
    output_room,
    parse_body,
)

MESSAGES = [{"role": "user", "content": "hello"}]


def chat(**fields: object) -> ChatBody:
    return parse_body(orjson.dumps({"messages": MESSAGES, **fields}), ChatBody)[0]


def test_the_newer_name_of_the_limit_counts_first() -> None:
    assert chat(max_tokens=5).limit == 5
    assert chat(max_tokens=5, max_completion_tokens=3).limit == 3
    assert chat().limit is None


def test_usage_is_sent_where_it_is_asked_for() -> None:
    assert chat(stream=True, stream_options={"include_usage": True}).include_usage
    assert not chat(stream=True, stream_options=None).include_usage


def test_what_it_does_not_know_is_accepted() -> None:
    assert chat(temperature=0.7, tools=[{"type": "function"}], made_up={"x": 1}).model == ""


@pytest.mark.parametrize("prompt", ["hello", [1, 2, 3], ["hello"]])
def test_prompts_come_as_text_or_ids(prompt: object) -> None:
    assert parse_body(orjson.dumps({"prompt": prompt}), TextBody)[0].prompt == prompt


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[]", "must be a JSON object"),
        (b"{}", "messages: Field required"),
        (b'{"messages":[]}', "messages"),
        (b'{"messages":"hello"}', "messages"),
        (b'{"messages":[{}],"max_tokens":0}', "max_tokens"),
        (b'{"messages":[{}],"n":2}', "n: Input should be 1"),
        (b'{"messages":[{}],"stream":"perhaps"}', "stream"),
    ],
)
def test_bad_requests_are_refused_with_the_reason(data: bytes, message: str) -> None:
    with pytest.raises(ApiError, match=message) as caught:
        parse_body(data, ChatBody)
    response = caught.value.response()
    error = orjson.loads(bytes(response.body))["error"]
    assert response.status_code == error["code"] == 400
    assert error["type"] == "BadRequestError"
    assert "\n" not in error["message"]


def test_an_unknown_model_is_a_404_in_the_words_of_vllm() -> None:
    check_model("served", "served")
    check_model("", "served")
    with pytest.raises(ApiError, match="The model `other` does not exist") as caught:
        check_model("other", "served")
    assert caught.value.status == 404


def test_room_for_the_output() -> None:
    assert output_room(100, None, 1000) == 900
    assert output_room(100, 50, 1000) == 50
    assert output_room(100, 900, 1000) == 900
    for prompt, limit in ((100, 901), (1000, None), (2000, 1)):
        with pytest.raises(ApiError, match="maximum context length is 1000 tokens"):
            output_room(prompt, limit, 1000)


def test_token_counts_in_headers() -> None:
    assert header_tokens(None, "x") is None
    assert header_tokens(b"12", "x") == 12
    for value in (b"0", b"-1", b"1.5", b"", b"many", b"9" * 5000):
        with pytest.raises(ApiError, match="header x"):
            header_tokens(value, "x")
