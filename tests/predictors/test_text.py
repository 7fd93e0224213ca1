"""Reading bodies: what is there is found, and nothing raises or takes long."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.predictors import blocks
from steersman.predictors.blocks import BLOCK_BYTES, BLOCK_TOKENS, MOST_BLOCKS, block_hashes
from steersman.predictors.features import LENGTH_FEATURES, length_features
from steersman.predictors.past import Past
from steersman.predictors.text import TextFeatures, text_features
from steersman.traces.schema import Priority, QuestionType, ToolChoice

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
KEYS = st.sampled_from(
    ["model", "messages", "prompt", "input", "instructions", "tools", "functions", "max_tokens",
     "max_completion_tokens", "stream", "role", "content", "text", "type", "tool_calls"]
)  # fmt: skip
BODY_LIKE = st.recursive(
    JSON,
    lambda inner: st.dictionaries(KEYS, inner, max_size=6) | st.lists(inner, max_size=4),
    max_leaves=20,
)


def chat(*contents: Any, **fields: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": c} for c in contents], **fields}


@given(st.dictionaries(KEYS, BODY_LIKE, max_size=6) | BODY_LIKE)
@settings(max_examples=150, deadline=None)
def test_no_body_raises(body: Any) -> None:
    features = text_features(body)
    assert features.size_bytes >= 0
    assert features.turns >= 1
    assert 0 <= features.tools < 2**15
    assert len(features.block_hashes) <= MOST_BLOCKS
    request = features.request(request_id="r", arrival_s=0.0, input_tokens=1)
    assert length_features(request, Past().begin(request)).shape == (len(LENGTH_FEATURES),)


def test_a_chat_body_is_understood() -> None:
    features = text_features(
        {
            "model": "llama",
            "messages": [
                {"role": "system", "content": "You are terse."},
                {
                    "role": "user",
                    "content": [{"type": "text", "text": "Translate this"}, {"type": "image_url"}],
                },
                {"role": "assistant", "content": None, "tool_calls": [{"id": "x"}]},
                {"role": "tool", "content": "42"},
            ],
            "tools": [{"type": "function"}, {"type": "function"}],
            "max_completion_tokens": 100,
            "max_tokens": 7,
            "stream": True,
        }
    )
    assert features.chat
    assert features.model == "llama"
    assert features.turns == 4
    assert features.tools == 2
    assert features.images == 1
    assert features.max_tokens == 100
    assert features.stream
    assert features.question_type is QuestionType.TRANSLATION
    texts = ["You are terse.", "Translate this", '[{"id":"x"}]', "42"]
    tools = '[{"type":"function"},{"type":"function"}]'
    assert features.pieces == (tools, *texts)
    assert features.size_bytes == sum(map(len, features.pieces))


def test_a_request_carries_no_text() -> None:
    request = text_features(chat("secret words " * 20)).request(
        request_id="r", arrival_s=1.5, input_tokens=9, tenant="t", priority=Priority.BATCH
    )
    assert "secret" not in repr(request)
    assert "secret" not in repr(text_features(chat("secret words " * 20)))
    assert (request.tenant, request.priority, request.input_tokens) == ("t", Priority.BATCH, 9)
    assert request.block_tokens == BLOCK_TOKENS


@pytest.mark.parametrize(
    ("prompt", "token_ids", "size"),
    [
        ("abc", 0, 3),
        (["ab", "c"], 0, 3),
        ([1, 2, 3], 3, 0),
        ([[1, 2], [3]], 3, 0),
        ([2**80], 1, 0),
        ([], 0, 0),
    ],
)
def test_completions_take_text_and_token_ids(prompt: Any, token_ids: int, size: int) -> None:
    features = text_features({"model": "m", "prompt": prompt})
    assert (features.token_ids, features.size_bytes, features.chat) == (token_ids, size, False)


def test_responses_take_instructions_and_input() -> None:
    plain = text_features({"instructions": "Be kind.", "input": "Hello"})
    assert plain.pieces == ("Be kind.", "Hello")
    assert plain.question_type is QuestionType.CHAT
    parts = [{"role": "user", "content": [{"type": "input_text", "text": "Who?"}]}]
    assert text_features({"input": parts}).pieces == ("Who?",)


@pytest.mark.parametrize("limit", [0, -1, True, 2.5, "10", None])
def test_a_senseless_limit_is_no_limit(limit: Any) -> None:
    assert text_features(chat("x", max_tokens=limit)).max_tokens is None


def test_bytes_count_beyond_ascii() -> None:
    assert text_features(chat("你好")).size_bytes == 6
    assert text_features(chat("\ud800")).size_bytes == 3


def test_equal_prefixes_have_equal_hashes_up_to_where_they_part() -> None:
    shared = "s" * 640
    one = text_features(chat(shared + "a" * 640)).block_hashes
    two = text_features(chat(shared + "b" * 640)).block_hashes
    same = sum(a == b for a, b in zip(one, two, strict=True))
    assert same == 10
    assert one[:same] == two[:same]
    assert len(one) == len(two) == 20


def test_the_next_turn_extends_the_hashes_of_the_one_before() -> None:
    first = [{"role": "system", "content": "x" * 500}, {"role": "user", "content": "y" * 500}]
    later = [*first, {"role": "assistant", "content": "z" * 300}]
    one = text_features({"model": "m", "messages": first}).block_hashes
    two = text_features({"model": "m", "messages": later}).block_hashes
    assert two[: len(one)] == one
    assert len(two) > len(one)


def test_models_roles_and_tools_part_the_hashes() -> None:
    bodies = [
        chat("x" * 100),
        chat("x" * 100, model="other"),
        chat("x" * 100, tools=[{}]),
        {"model": "m", "messages": [{"role": "system", "content": "x" * 100}]},
    ]
    assert len({text_features(body).block_hashes[0] for body in bodies}) == len(bodies)


@given(st.binary(max_size=1000), st.lists(st.integers(0, 1000), max_size=5))
def test_hashes_do_not_depend_on_how_the_prompt_is_cut(data: bytes, cuts: list[int]) -> None:
    def parts() -> Iterator[bytes]:
        edges = [0, *sorted(cuts), len(data)]
        for start, end in pairwise(edges):
            yield data[start:end]

    whole = block_hashes("m", iter([data]))
    assert block_hashes("m", parts()) == whole
    assert len(whole) == len(data) // BLOCK_BYTES
    assert all(0 <= block < 2**63 for block in whole)


@given(st.binary(max_size=1000), st.text(max_size=5))
def test_few_blocks_are_hashed_as_many_are(data: bytes, model: str) -> None:
    many = data + bytes(BLOCK_BYTES) * (blocks.FEW_BLOCKS + 1)
    shared = len(data) // BLOCK_BYTES
    assert block_hashes(model, [data]) == block_hashes(model, [many])[:shared]


def test_hashes_are_the_same_in_every_process() -> None:
    program = "from steersman.predictors import blocks; print(blocks.block_hashes('m', [b'x' * 64]))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(block_hashes("m", iter([b"x" * 64])))


def test_a_huge_prompt_is_hashed_up_to_a_bound() -> None:
    features = text_features(chat("word " * 2_000_000))
    assert features.size_bytes == 10_000_000
    assert len(features.block_hashes) == MOST_BLOCKS
    many = text_features(chat(*["word " * 100] * 20_000))
    assert many.turns == 20_000
    assert len(many.block_hashes) == MOST_BLOCKS
    ids = text_features({"prompt": list(range(1_000_000))})
    assert ids.token_ids == 1_000_000
    assert len(ids.block_hashes) == MOST_BLOCKS


def test_code_is_seen_in_any_message() -> None:
    assert text_features(chat("Look:\n```\nx\n```", "thanks")).has_code
    assert text_features(chat("def f(x):\n    return x")).has_code
    assert not text_features(chat("What is the capital of France?")).has_code
    assert not text_features(chat("hello", tools=[{"description": "```"}])).has_code


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Translate 'good morning' into French", QuestionType.TRANSLATION),
        ("Write a Python function that reverses a list", QuestionType.CODE),
        ("SELECT a FROM t;", QuestionType.CODE),
        ("Summarize the following article: ...", QuestionType.EXTRACTION),
        ("Write a short poem about the sea", QuestionType.CREATIVE),
        ("A train leaves at 3 pm. How many hours until 9 pm?", QuestionType.REASONING),
        ("What is the capital of France?", QuestionType.FACTUAL),
        ("hello there", QuestionType.CHAT),
        ("翻译成英文：你好", QuestionType.TRANSLATION),
        ("xyzzy", QuestionType.UNKNOWN),
        ("", QuestionType.UNKNOWN),
    ],
)
def test_question_types(message: str, kind: QuestionType) -> None:
    assert text_features(chat(message)).question_type is kind


def test_the_last_user_message_decides_the_question_type() -> None:
    body: dict[str, Any] = {
        "messages": [
            {"role": "user", "content": "hello"},
            {"role": "user", "content": "Translate it"},
            {"role": "assistant", "content": "Write a poem about it?"},
        ]
    }
    assert text_features(body).question_type is QuestionType.TRANSLATION


@pytest.mark.parametrize(
    ("message", "tokens"),
    [
        ("Describe the sea in 300 words.", 400),
        ("Write a 1,500-word essay", 2000),
        ("Answer in one sentence", 25),
        ("Give me two short paragraphs and 3 lines", 200),
        ("Is it wet? Answer yes or no.", 3),
        ("What does a word mean?", 0),
        ("Count to 100", 0),
        ("write 99999999 pages", 32_768),
        ("", 0),
    ],
)
def test_the_length_asked_for(message: str, tokens: int) -> None:
    assert text_features(chat(message)).asked_tokens == tokens


@pytest.mark.parametrize(
    ("fields", "choice"),
    [
        ({}, ToolChoice.AUTO),
        ({"tool_choice": "auto"}, ToolChoice.AUTO),
        ({"tool_choice": "none"}, ToolChoice.NONE),
        ({"tool_choice": "required"}, ToolChoice.REQUIRED),
        ({"tool_choice": {"type": "function", "function": {"name": "f"}}}, ToolChoice.REQUIRED),
        ({"function_call": {"name": "f"}}, ToolChoice.REQUIRED),
        ({"tool_choice": ["odd"]}, ToolChoice.AUTO),
    ],
)
def test_whether_a_tool_must_be_called(fields: dict[str, Any], choice: ToolChoice) -> None:
    assert text_features(chat("x", tools=[{}], **fields)).tool_choice is choice


def test_the_question_is_measured_apart_from_what_came_before() -> None:
    body = chat("x" * 5000, "wie groß?")
    body["messages"].append({"role": "tool", "content": "y" * 50})
    features = text_features(body)
    assert features.question_bytes == 10
    assert features.size_bytes == 5060
    assert features.words == text_features(chat("wie groß?")).words


def test_a_huge_prompt_is_read_in_little_memory() -> None:
    body = chat("wörd " * 2_000_000)
    tracemalloc.start()
    features = text_features(body)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert features.size_bytes == 12_000_000
    assert most < 4_000_000


def test_nothing_is_known_of_what_is_no_body() -> None:
    nothing: tuple[Any, ...] = (None, [], "x", 3)
    for body in nothing:
        assert text_features(body) == TextFeatures()


@pytest.mark.parametrize(
    "body",
    [
        {"query": "ab", "documents": ["cde", {"text": "fg"}, {"image": "x"}]},
        {"text_1": "ab", "text_2": ["cde", "fg"]},
        {"queries": ["ab"], "items": ["cdefg"]},
        {"input": ["abcde", "fg"]},
    ],
)
def test_bodies_that_ask_for_scores_or_vectors_have_a_size(body: dict[str, Any]) -> None:
    features = text_features(body)
    assert features.size_bytes == 7
    assert not features.chat
