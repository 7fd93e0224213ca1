from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.env.emulator.answer_length import AnswerLengths
from steersman.env.emulator.protocol import ApiError
from steersman.env.emulator.settings import Lengths


def lengths(seed: int = 0) -> AnswerLengths:
    return AnswerLengths(Lengths(median_tokens=100, sigma=0.5), seed)


def test_the_header_decides_first() -> None:
    assert lengths().choose(7, {"vllm_xargs": {"output_tokens": 9}, "ignore_eos": True}, 100) == (
        7,
        "stop",
    )


def test_then_the_request_field() -> None:
    assert lengths().choose(None, {"vllm_xargs": {"output_tokens": "9"}}, 100) == (9, "stop")


def test_then_ignore_eos_fills_the_room() -> None:
    assert lengths().choose(None, {"ignore_eos": True}, 64) == (64, "length")


def test_the_limit_cuts_what_is_longer() -> None:
    assert lengths().choose(500, {}, 64) == (64, "length")
    assert lengths().choose(64, {}, 64) == (64, "stop")


@given(st.integers(1, 5000), st.integers(0, 100))
def test_a_draw_stays_in_the_room(room: int, seed: int) -> None:
    tokens, reason = lengths(seed).choose(None, {}, room)
    assert 1 <= tokens <= room
    assert reason in {"stop", "length"}


def test_draws_follow_the_settings_and_the_seed() -> None:
    first, second = lengths(5), lengths(5)
    drawn = [first.choose(None, {}, 100_000)[0] for _ in range(2000)]
    assert drawn == [second.choose(None, {}, 100_000)[0] for _ in range(2000)]
    assert 93 < float(np.median(drawn)) < 107


@pytest.mark.parametrize("value", [0, -3, "many", [1]])
def test_a_count_that_is_none_is_refused(value: object) -> None:
    with pytest.raises(ApiError, match="not a positive number of tokens"):
        lengths().choose(None, {"vllm_xargs": {"output_tokens": value}}, 10)
