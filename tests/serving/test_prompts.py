from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.text import text_features
from steersman.predictors.tokens import CalibratedCounter
from steersman.serving.prompts import WORDS, prompt_text
from steersman.traces.schema import Request


def request(tokens: int, **changes: object) -> Request:
    return replace(Request("r1", 0.0, tokens), **changes)  # type: ignore[arg-type]


def test_words_are_distinct_and_one_token_long() -> None:
    assert len(set(WORDS)) == 256
    assert {len(word) for word in WORDS} == {4}


@given(st.integers(1, 3000), st.integers(0, 40), st.sampled_from([16, 64, 512]))
def test_a_prompt_is_as_long_as_recorded(tokens: int, blocks: int, block_tokens: int) -> None:
    hashes = tuple(range(blocks))
    known = request(tokens, block_hashes=hashes, block_tokens=block_tokens if hashes else 0)
    assert len(prompt_text(known)) == 4 * tokens


def test_the_estimate_from_text_is_close_to_the_recorded_length() -> None:
    body = {"messages": [{"role": "user", "content": prompt_text(request(1000))}]}
    assert abs(CalibratedCounter().count("", text_features(body)) - 1000) <= 5


def test_shared_blocks_are_shared_text_and_nothing_more() -> None:
    first = prompt_text(request(100, block_hashes=(7, 8, 9), block_tokens=16))
    second = prompt_text(request(100, request_id="r2", block_hashes=(7, 8, 5), block_tokens=16))
    shared = 2 * 16 * 4
    assert first[:shared] == second[:shared]
    assert first[shared : shared + 64] != second[shared : shared + 64]


def test_requests_without_hashes_share_nothing() -> None:
    assert prompt_text(request(50))[:64] != prompt_text(request(50, request_id="r2"))[:64]


def test_turns_of_a_session_extend_each_other() -> None:
    first = prompt_text(request(50, session_id="s"))
    second = prompt_text(request(180, request_id="r2", session_id="s"))
    assert second.startswith(first)


def test_it_is_the_same_for_the_same_salt_and_shares_nothing_with_another() -> None:
    known = request(64, block_hashes=(1, 2), block_tokens=16)
    assert prompt_text(known, "a") == prompt_text(known, "a")
    other, some = prompt_text(known, "b"), prompt_text(known, "a")
    assert other[:64] != some[:64]
    assert other[-64:] != some[-64:]
