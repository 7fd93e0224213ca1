"""Words tell how long answers are, once they have been seen with some."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.wording import BUCKETS, MOST_SCORE, Wording, word_buckets

LONG, SHORT = word_buckets(["write", "an", "essay"]), word_buckets(["yes", "or", "no"])


def test_it_begins_knowing_nothing() -> None:
    assert Wording().score(LONG) == 0.0
    assert Wording().score(()) == 0.0


def test_words_that_came_with_long_answers_promise_long_ones() -> None:
    wording = Wording()
    for _ in range(50):
        wording.learn(LONG, 800, 200)
        wording.learn(SHORT, 5, 200)
    assert wording.score(LONG) > 0.5
    assert wording.score(SHORT) < -0.5
    assert wording.score(word_buckets(["zebra"])) == 0.0
    half = wording.score(word_buckets(["write", "or"]))
    assert wording.score(SHORT) < half < wording.score(LONG)


def test_what_all_answers_share_is_not_the_words() -> None:
    wording = Wording()
    rng = np.random.default_rng(0)
    for _ in range(2000):
        wording.learn(tuple(rng.integers(0, 50, 5).tolist()), 400, 200)
    assert abs(wording.score(tuple(range(5)))) < 0.3


def test_it_follows_a_habit_that_changes() -> None:
    wording = Wording()
    for _ in range(200):
        wording.learn(LONG, 800, 200)
    before = wording.score(LONG)
    for _ in range(200):
        wording.learn(LONG, 100, 200)
    assert wording.score(LONG) < min(before, 0.0)


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, BUCKETS - 1), max_size=5).map(tuple),
            st.floats(0, 1e12),
            st.floats(0, 1e12),
        ),
        max_size=30,
    )
)
def test_no_answer_breaks_it(answers: list[tuple[tuple[int, ...], float, float]]) -> None:
    wording = Wording()
    for buckets, output, usual in answers:
        wording.learn(buckets, output, usual)
        assert abs(wording.score(buckets)) <= MOST_SCORE


def test_equal_words_have_equal_buckets_everywhere() -> None:
    assert word_buckets(["a", "b", "a"]) == word_buckets(["b", "a"])
    assert word_buckets(["write"]) == (14943,)
    assert word_buckets(["\ud800"])
