from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.env.emulator.answers import Answer, Usage
from steersman.env.emulator.words import WORDS, word


def answer(*, chat: bool, seed: int = 3, model: str = "m") -> Answer:
    return Answer(chat=chat, answer_id="id-1", created=7, model=model, seed=seed)


def events(stream: bytes) -> list[dict[str, Any]]:
    parts = stream.split(b"\n\n")
    assert parts[-2:] == [b"data: [DONE]", b""]
    assert all(part.startswith(b"data: ") for part in parts[:-1])
    return [orjson.loads(part[6:]) for part in parts[:-2]]


def text_of(event: dict[str, Any]) -> str:
    choice = event["choices"][0]
    return str(choice["delta"]["content"] if "delta" in choice else choice["text"])


@given(st.lists(st.integers(1, 5), max_size=8), st.integers(0, 10_000), st.booleans())
def test_a_stream_says_the_same_as_the_whole_answer(counts: list[int], seed: int, chat: bool) -> None:
    made = answer(chat=chat, seed=seed)
    usage = Usage(prompt_tokens=11, completion_tokens=sum(counts) + 1, cached_tokens=0)
    stream, at = made.opening(), 0
    for count in counts:
        stream += made.tokens(at, count)
        at += count
    stream += made.closing(at, "stop", None)
    got = events(stream)
    tokens = got[1:] if chat else got
    assert len(tokens) == usage.completion_tokens
    whole = orjson.loads(made.whole("stop", usage))["choices"][0]
    said = whole["message"]["content"] if chat else whole["text"]
    assert "".join(map(text_of, tokens)) == said
    assert [event["choices"][0]["finish_reason"] for event in tokens[-2:]][-1] == "stop"
    assert all(event["choices"][0]["finish_reason"] is None for event in tokens[:-1])


def test_a_chat_stream_begins_with_the_role() -> None:
    (first, *_) = events(answer(chat=True).opening() + answer(chat=True).closing(0, "stop", None))
    assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert first["object"] == "chat.completion.chunk"
    assert answer(chat=False).opening() == b""


def test_usage_is_an_event_of_its_own_without_choices() -> None:
    usage = Usage(prompt_tokens=10, completion_tokens=1, cached_tokens=4)
    *_, last = events(answer(chat=True).closing(0, "length", usage))
    assert last["choices"] == []
    assert last["usage"] == {
        "prompt_tokens": 10,
        "completion_tokens": 1,
        "total_tokens": 11,
        "prompt_tokens_details": {"cached_tokens": 4},
    }


@pytest.mark.parametrize("chat", [True, False])
def test_names_with_quotes_stay_json(chat: bool) -> None:
    made = answer(chat=chat, model='a"b\\c\n')
    got = events(made.opening() + made.tokens(0, 2) + made.closing(2, "stop", None))
    assert {event["model"] for event in got} == {'a"b\\c\n'}


def test_whole_answers_have_the_objects_of_openai() -> None:
    usage = Usage(1, 2, 0)
    assert orjson.loads(answer(chat=True).whole("stop", usage))["object"] == "chat.completion"
    assert orjson.loads(answer(chat=False).whole("stop", usage))["object"] == "text_completion"


def test_words_need_no_escaping_and_do_not_repeat_at_once() -> None:
    assert all(orjson.dumps(text) == f'"{text}"'.encode() for text in WORDS)
    assert len(set(WORDS)) == len(WORDS)
    assert word(1, 0) != word(2, 0)
