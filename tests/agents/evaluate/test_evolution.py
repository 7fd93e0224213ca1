from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from steersman.agents.evaluate.evolution import Points, evolve

HOME = np.array([0.3, 0.9, 0.5])


def searched(seed: int, generations: int) -> tuple[Points, float, list[Points]]:
    """The best of a bowl around HOME, and all that was asked."""
    rng = np.random.default_rng(seed)
    search = evolve(rng.random((10, 3)), generations, rng)
    asked = [next(search)]
    try:
        while True:
            asked.append(search.send(bowl(asked[-1])))
    except StopIteration as end:
        best, value = end.value
    return best, value, asked


def bowl(points: Points) -> NDArray[np.float64]:
    distance: NDArray[np.float64] = ((points - HOME) ** 2).sum(axis=-1)
    return distance


def test_it_comes_close_and_never_leaves_the_cube() -> None:
    for seed in range(5):
        best, value, asked = searched(seed, 20)
        everything = np.concatenate(asked)
        assert len(everything) == 200
        assert ((everything >= 0.0) & (everything <= 1.0)).all()
        assert value == bowl(best) == bowl(everything).min() < 0.01


def test_a_longer_search_begins_as_a_shorter_one() -> None:
    short, long = searched(3, 4)[2], searched(3, 9)[2]
    assert len(short) == 4
    for mine, theirs in zip(short, long, strict=False):
        np.testing.assert_array_equal(mine, theirs)


def test_a_generation_is_all_there_is() -> None:
    best, value, asked = searched(0, 1)
    assert len(asked) == 1
    assert value == bowl(asked[0]).min() == bowl(best)
