"""Asked together, policies choose what each would have chosen alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.batch import BatchPolicy, Deciders, argmax_choices
from steersman.agents.evaluate.spaces import SPACES, options_at
from steersman.agents.policies import POLICY_NAMES, make_policy
from steersman.agents.policy import NO_CANDIDATE, Policy, argmax_decision
from steersman.agents.samples import sample_observation
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.schema import Observation

WIDTH = 9
TOGETHER = [name for name in POLICY_NAMES if isinstance(make_policy(name, seed=0), BatchPolicy)]


def test_most_policies_can_be_asked_together() -> None:
    assert set(POLICY_NAMES) - set(TOGETHER) == {
        "random",
        "round-robin",
        "weighted-round-robin",
        "aibrix-vtc",
        "bounded-hash",
    }


SIZES = (1, 2, 5, 9)


def batched(seen: list[Observation]) -> Observation:
    """One batch of them, padded as `ClusterBatch` pads."""

    def padded(array: NDArray[Any]) -> NDArray[Any]:
        room = [(0, WIDTH - len(array))] + [(0, 0)] * (array.ndim - 1)
        return np.pad(array, room)

    return Observation(
        np.stack([padded(one.replicas) for one in seen]),
        np.stack([one.request for one in seen]),
        np.stack([one.pool for one in seen]),
        np.stack([padded(one.mask) for one in seen]),
        np.stack([one.identity for one in seen]),
        np.array([float(one.at_s) for one in seen]),
    )


@pytest.fixture(scope="module")
def samples() -> dict[int, list[Observation]]:
    """Observations by the number of replicas; drawing them takes longer than deciding."""
    rng = np.random.default_rng(7)
    return {n: [sample_observation(rng, n, allowed=n) for _ in range(12)] for n in SIZES}


def scenes(
    samples: dict[int, list[Observation]], rng: np.random.Generator, sizes: list[int]
) -> list[Observation]:
    """One observation a cluster: some without anybody, some all alike, some with broken features."""
    seen = []
    for n in sizes:
        drawn = samples[n][int(rng.integers(len(samples[n])))]
        one = replace(drawn, replicas=drawn.replicas.copy(), mask=rng.random(n) < rng.random())
        kind = rng.random()
        if kind < 0.3:
            one.replicas[:] = one.replicas[0]
            one.replicas[:, REPLICA_INDEX["match_fraction"]] = rng.integers(0, 2, n) * 0.8
            one.replicas[:, REPLICA_INDEX["inflight"]] = rng.integers(0, 3, n) * 8
        elif kind < 0.4:
            one.replicas[int(rng.integers(n))] = np.nan
        seen.append(one)
    return seen


def members(name: str, rng: np.random.Generator, count: int) -> list[Callable[[], Policy]]:
    """Each with constants and a seed of its own, the first with the published ones."""
    space = SPACES.get(name, {})
    drawn = [None, *(options_at(space, rng.random(len(space))) for _ in range(count - 1))]
    return [partial(make_policy, name, seed=i, options=o) for i, o in enumerate(drawn)]


def test_a_row_of_argmax_is_argmax() -> None:
    rng = np.random.default_rng(1)
    scores = rng.integers(0, 3, (200, 4)).astype(np.float32)
    scores[rng.random(scores.shape) < 0.2] = np.nan
    mask = rng.random(scores.shape) < 0.6
    alone = [
        argmax_decision(row, allowed, np.random.default_rng(i), policy="t").choice
        for i, (row, allowed) in enumerate(zip(scores, mask, strict=True))
    ]
    rngs = [np.random.default_rng(i) for i in range(len(scores))]
    assert argmax_choices(scores, mask, rngs).tolist() == alone
    assert NO_CANDIDATE in alone


@pytest.mark.parametrize("name", TOGETHER)
@given(seed=st.integers(0, 2**32 - 1))
@settings(max_examples=6, deadline=None)
def test_together_is_one_by_one(samples: dict[int, list[Observation]], name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    sizes = [int(n) for n in rng.choice(SIZES, size=14)]
    makers = members(name, rng, len(sizes))
    alone = [make() for make in makers]
    deciders = Deciders([make() for make in makers], sizes)
    for _ in range(6):  # their state and their generators go on
        seen = scenes(samples, rng, sizes)
        asked = np.ones(len(sizes), dtype=np.bool_)
        with np.errstate(all="ignore"):
            expected = [policy.decide(one).choice for policy, one in zip(alone, seen, strict=True)]
        assert deciders.choices(batched(seen), asked).tolist() == expected
