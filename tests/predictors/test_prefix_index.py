"""PrefixIndex against a model so plain that it is evidently right."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.prefix_index import PrefixIndex

# Prompts as paths in a small tree, so that prefixes are really shared. A block's hash stands for its
# whole prefix, as chained hashes do.
PATHS = st.lists(st.integers(0, 2), min_size=0, max_size=6)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(0, 2), PATHS),
        st.tuples(st.just("forget"), st.integers(0, 2), st.just([])),
    ),
    max_size=40,
)


def chained(path: list[int]) -> tuple[int, ...]:
    hashes, value = [], 1
    for step in path:
        value = value * 3 + step
        hashes.append(value)
    return tuple(hashes)


class NaiveIndex:
    """Every replica a list of blocks, the most recently used last."""

    def __init__(self, capacities: list[int]) -> None:
        self.capacities = capacities
        self.held: list[list[int]] = [[] for _ in capacities]
        self.used_s: list[dict[int, float]] = [{} for _ in capacities]

    def insert(self, replica: int, hashes: tuple[int, ...], now_s: float) -> None:
        capacity = self.capacities[replica]
        kept = list(reversed(hashes[:capacity]))
        others = [block for block in self.held[replica] if block not in kept]
        self.held[replica] = (others + kept)[max(len(others) + len(kept) - capacity, 0) :]
        self.used_s[replica] |= dict.fromkeys(kept, now_s)

    def forget(self, replica: int) -> None:
        self.held[replica] = []

    def oldest_s(self, replica: int) -> float:
        held = self.held[replica]
        if not held or len(held) < self.capacities[replica]:
            return -math.inf
        return min(self.used_s[replica][block] for block in held)

    def match(self, hashes: tuple[int, ...]) -> list[int]:
        counts = []
        for held in self.held:
            count = 0
            while count < len(hashes) and hashes[count] in held:
                count += 1
            counts.append(count)
        return counts


@given(capacities=st.lists(st.integers(0, 12), min_size=3, max_size=3), steps=STEPS, probe=PATHS)
def test_agrees_with_a_naive_model(
    capacities: list[int], steps: list[tuple[str, int, list[int]]], probe: list[int]
) -> None:
    index, naive = PrefixIndex(capacities), NaiveIndex(capacities)
    for now_s, (action, replica, path) in enumerate(steps):
        if action == "insert":
            index.insert(replica, chained(path), float(now_s))
            naive.insert(replica, chained(path), float(now_s))
        else:
            index.forget(replica)
            naive.forget(replica)
        assert index.match(chained(probe)).tolist() == naive.match(chained(probe))
        assert [index.blocks_held(r) for r in range(3)] == [len(held) for held in naive.held]
        assert [index.oldest_s(r) for r in range(3)] == [naive.oldest_s(r) for r in range(3)]
        assert len(index) == len({block for held in naive.held for block in held})


@given(capacity=st.integers(1, 8), steps=STEPS)
def test_what_is_held_of_a_prompt_is_a_prefix_of_it(
    capacity: int, steps: list[tuple[str, int, list[int]]]
) -> None:
    index = PrefixIndex([capacity])
    prompts = [chained(path) for action, _, path in steps if action == "insert"]
    for prompt in prompts:
        index.insert(0, prompt, 0.0)
        assert index.blocks_held(0) <= capacity
    for prompt in prompts:
        held = [index.match((block,))[0] for block in prompt]
        assert held == sorted(held, reverse=True)


@given(depths=st.lists(st.integers(0, 300), min_size=1, max_size=40), asked=st.integers(0, 300))
def test_long_prompts_of_which_each_replica_holds_another_part(depths: list[int], asked: int) -> None:
    prompt = tuple(range(1_000, 1_300))
    index = PrefixIndex([300] * len(depths))
    for replica, depth in enumerate(depths):
        index.insert(replica, (*prompt[:depth], 7, 8), 0.0)
    matched = index.match(prompt[:asked])
    assert matched.tolist() == [min(depth, asked) for depth in depths]


def test_a_long_match_takes_few_look_ups() -> None:
    index, asked = PrefixIndex([500] * 8), []
    prompt = tuple(range(400))
    for replica in range(8):
        index.insert(replica, prompt[: 300 if replica < 2 else 20], 0.0)

    class Counting(dict[int, int]):
        def get(self, key: int, default: int = 0) -> int:  # type: ignore[override]
            asked.append(key)
            return super().get(key, default)

    index._holders = Counting(index._holders)
    assert index.match(prompt).tolist() == [300, 300, *[20] * 6]
    assert len(asked) < 40


def test_a_prompt_longer_than_the_cache_leaves_its_head() -> None:
    index = PrefixIndex([3])
    index.insert(0, (1, 2, 3, 4, 5), 0.0)
    assert index.match((1, 2, 3, 4, 5)).tolist() == [3]


def test_using_a_prompt_again_saves_it_from_eviction() -> None:
    index = PrefixIndex([4])
    index.insert(0, (1, 2), 0.0)
    index.insert(0, (3, 4), 0.0)
    index.insert(0, (1, 2), 0.0)
    index.insert(0, (5, 6), 0.0)
    assert index.match((1, 2)).tolist() == [2]
    assert index.match((3, 4)).tolist() == [0]


def test_an_empty_prompt_matches_nothing() -> None:
    index = PrefixIndex([4, 4])
    matched = index.match(())
    assert matched.tolist() == [0, 0]
    assert matched.dtype == np.int64


def test_hundreds_of_replicas() -> None:
    index = PrefixIndex([8] * 500)
    index.insert(499, (1, 2, 3), 0.0)
    index.insert(0, (1,), 0.0)
    matched = index.match((1, 2, 3, 4))
    assert matched[499] == 3
    assert matched[0] == 1
    assert matched.sum() == 4


def test_what_would_go_next_was_last_used_when_its_prompt_came() -> None:
    index = PrefixIndex([4])
    index.insert(0, (1, 2), 10.0)
    assert index.oldest_s(0) == -math.inf, "there is room"
    index.insert(0, (3, 4), 20.0)
    assert index.oldest_s(0) == 10.0
    index.insert(0, (1, 2), 30.0)
    assert index.oldest_s(0) == 20.0
    index.forget(0)
    assert index.oldest_s(0) == -math.inf


def test_a_shrunk_cache_evicts_at_once() -> None:
    index = PrefixIndex([4])
    index.insert(0, (1, 2, 3, 4), 0.0)
    index.resize(0, 1)
    assert index.match((1, 2, 3, 4)).tolist() == [1]
    assert len(index) == 1


def test_a_new_replica_starts_empty() -> None:
    index = PrefixIndex([4])
    index.insert(0, (1, 2), 0.0)
    assert index.add_replica(4) == 1
    assert index.match((1, 2)).tolist() == [2, 0]
    index.insert(1, (1,), 0.0)
    assert index.match((1, 2)).tolist() == [2, 1]
    assert index.replicas == 2


def test_a_copy_lives_its_own_life() -> None:
    index = PrefixIndex([4, 4])
    index.insert(0, (1, 2), 0.0)
    twin = index.copy()
    twin.insert(1, (1, 2, 3), 0.0)
    twin.forget(0)
    assert index.match((1, 2, 3)).tolist() == [2, 0]
    assert twin.match((1, 2, 3)).tolist() == [0, 3]
