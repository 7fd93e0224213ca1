"""Token counts: the estimate converges, resists nonsense and stays bounded."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.text import TextFeatures
from steersman.predictors.tokens import (
    DEFAULT_BYTES_PER_TOKEN,
    IMAGE_TOKENS,
    MESSAGE_TOKENS,
    CalibratedCounter,
    TokenizerCounter,
)
from steersman.traces.errors import ConfigError


def text(size_bytes: int, turns: int = 1) -> TextFeatures:
    return TextFeatures(chat=True, size_bytes=size_bytes, turns=turns)


@pytest.mark.parametrize("ratio", [1.5, 3.0, 4.6, 7.0])
def test_the_estimate_converges_to_the_models_ratio(ratio: float) -> None:
    rng = np.random.default_rng(1)
    counter = CalibratedCounter()
    for _ in range(150):
        size, turns = int(rng.integers(100, 20_000)), int(rng.integers(1, 6))
        true_ratio = ratio * float(np.exp(rng.normal(0, 0.1)))
        counter.learn("m", text(size, turns), round(size / true_ratio) + MESSAGE_TOKENS * turns)
    assert counter.bytes_per_token("m") == pytest.approx(ratio, rel=0.05)
    assert counter.count("m", text(10_000)) == pytest.approx(10_000 / ratio, rel=0.06)
    assert counter.bytes_per_token("other") == DEFAULT_BYTES_PER_TOKEN


def test_it_follows_a_change_and_resists_an_outlier() -> None:
    counter = CalibratedCounter()
    for _ in range(100):
        counter.learn("m", text(4_000), 1_000 + MESSAGE_TOKENS)
    counter.learn("m", text(4_000), 10**9)
    assert counter.bytes_per_token("m") == pytest.approx(4.0, rel=0.02)
    for _ in range(300):
        counter.learn("m", text(4_000), 2_000 + MESSAGE_TOKENS)
    assert counter.bytes_per_token("m") == pytest.approx(2.0, rel=0.02)


@given(st.lists(st.tuples(st.integers(0, 10**8), st.integers(-(10**12), 10**12)), max_size=50))
def test_any_report_leaves_a_sane_estimate(reports: list[tuple[int, int]]) -> None:
    counter = CalibratedCounter()
    for size, tokens in reports:
        counter.learn("m", text(size), tokens)
    assert 0.4 < counter.bytes_per_token("m") < 17
    assert counter.count("m", text(0)) >= 1


def test_images_ids_and_templates_are_counted() -> None:
    counter = CalibratedCounter()
    assert counter.count("m", TextFeatures()) == 1
    assert counter.count("m", TextFeatures(token_ids=77)) == 77
    assert (
        counter.count("m", TextFeatures(chat=True, turns=2, images=1))
        == 2 * MESSAGE_TOKENS + IMAGE_TOKENS
    )


def test_it_remembers_a_bounded_number_of_models() -> None:
    counter = CalibratedCounter(most_models=2)
    for model in ("a", "b", "c"):
        counter.learn(model, text(4_000), 2_000)
    assert counter.bytes_per_token("a") == DEFAULT_BYTES_PER_TOKEN
    assert counter.bytes_per_token("c") < DEFAULT_BYTES_PER_TOKEN


def test_a_real_tokenizer_counts_exactly(tmp_path: Path) -> None:
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    counter = TokenizerCounter(tmp_path / "tokenizer.json", most_characters=1_000)
    assert counter.count("m", TextFeatures(pieces=("one two", "three \ud800"))) == 4
    long = TextFeatures(pieces=("word " * 10_000,))
    assert counter.count("m", long) == pytest.approx(10_000, rel=0.01)
    counter.learn("m", long, 5)


def test_pieces_of_a_long_prompt_stand_for_all_of_it(tmp_path: Path) -> None:
    """Half of it is one word a character, half of it is long words: the head alone would mislead."""
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    counter = TokenizerCounter(tmp_path / "tokenizer.json", most_characters=2_000)
    mixed = TextFeatures(pieces=("a " * 20_000, *["abcdefghi "] * 4_000))
    assert counter.count("m", mixed) == pytest.approx(24_000, rel=0.1)
    many = TextFeatures(pieces=("abcd",) * 50_000)
    assert counter.count("m", many) > 0


def test_a_missing_package_or_file_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match="not installed") as error:
        TokenizerCounter(tmp_path / "tokenizer.json")
    assert "\n" not in str(error.value)
