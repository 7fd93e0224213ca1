"""What a decision puts off changes nothing, whenever it is done."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from steersman.agents.guard.regret import CREDIBLE, LEAST, RegretWatch, better_of_two_weights
from steersman.agents.policy import settle
from steersman.agents.ranges import Ranges
from steersman.agents.samples import sample_observation
from steersman.predictors.features import REPLICA_FEATURES, REPLICA_INDEX, REQUEST_FEATURES
from tests.agents.test_exploration import even, explorer, learned

COST = REPLICA_INDEX["marginal_cost"]
WINDOW, SLACK, FACTOR = 5, 0.7, 1.5


def at_once(costs: list[list[float]], choices: list[int], weights: list[float]) -> list[bool]:
    """`RegretWatch.is_costly` of one choice after the other, everything counted at once."""
    own_mean = allowed_mean = ones = 0.0
    found = []
    for cost, choice, weight in zip(costs, choices, weights, strict=True):
        ordered = np.sort(np.array(cost, dtype=np.float32))
        own = float(np.float32(cost[choice])) - float(ordered[0])
        of_two = max(float(ordered @ better_of_two_weights(len(cost)) - ordered[0]), 0.0)
        limit = SLACK + (float(ordered[0]) * (FACTOR - 1.0) if ordered[0] <= CREDIBLE else 0.0)
        own_mean += weight * (own - own_mean) / WINDOW
        allowed_mean += weight * (of_two + limit - allowed_mean) / WINDOW
        ones += weight * (1.0 - ones) / WINDOW
        is_lost = ones >= LEAST and own_mean > allowed_mean
        found.append(own - of_two > limit and is_lost)
    return found


COSTS = st.lists(st.floats(0.0, 4.0, width=32), min_size=1, max_size=6) | st.lists(
    st.floats(0.0, 2.0 * CREDIBLE, width=32), min_size=1, max_size=6
)


@hypothesis_settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(COSTS, st.integers(0, 5), st.sampled_from([0.25, 1.0]), st.booleans()),
        min_size=1,
        max_size=25,
    )
)
def test_what_is_counted_later_gives_the_same_verdicts(
    steps: list[tuple[list[float], int, float, bool]],
) -> None:
    watch = RegretWatch(WINDOW, SLACK, FACTOR)
    found = []
    for cost, choice, weight, in_time in steps:
        rows = np.zeros((len(cost), len(REPLICA_FEATURES)), dtype=np.float32)
        rows[:, COST] = cost
        found.append(watch.is_costly(rows, choice % len(cost), weight))
        rows[:, COST] = 99.0  # what was seen is remembered, not where it was
        if in_time:
            watch.settle()
    costs = [cost for cost, _, _, _ in steps]
    choices = [choice % len(cost) for cost, choice, _, _ in steps]
    assert found == at_once(costs, choices, [weight for _, _, weight, _ in steps])


@pytest.mark.parametrize("share", [0.0, 0.2])
def test_a_policy_decides_the_same_whether_it_settles_or_not(share: float) -> None:
    one, other = explorer(learned(1), 1, share), explorer(learned(1), 1, share)
    rng = np.random.default_rng(0)
    for _ in range(300):
        seen = sample_observation(rng, 6)
        a, b = one.decide(seen), other.decide(seen)
        settle(one)
        assert (a.choice, a.fallback_reason, a.propensity) == (b.choice, b.fallback_reason, b.propensity)


def test_a_propensity_is_that_of_what_was_seen() -> None:
    policy = explorer(learned(1), 0, 0.2)
    seen, again = even(5, 5), even(5, 5)
    decision = policy.decide(seen)
    while decision.explored:
        decision = policy.decide(seen)
    seen.replicas[:, REPLICA_INDEX["ttft_s"]] = np.nan
    assert decision.propensity == decision.propensity == pytest.approx(0.8 + 0.2 / 5)
    assert policy.propensity_of_kept(
        decision.choice, again.mask, again.replicas[:, REPLICA_INDEX["ttft_s"]]
    ) == pytest.approx(0.84)
    with pytest.raises(AttributeError):
        _ = decision.nothing  # type: ignore[attr-defined]


@hypothesis_settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 12), st.sampled_from([0.0, 0.05, 0.3]), st.floats(0.0, 1.0))
def test_beyond_the_ranges_is_a_share_above_the_bound(
    seed: int, n: int, tolerance: float, most: float
) -> None:
    rng = np.random.default_rng(seed)
    seen = sample_observation(rng, n, allowed=n)
    middle = seen.replicas[rng.integers(n)]
    asked = np.where(rng.random(len(REQUEST_FEATURES)) < 0.5, seen.request, seen.request + 1.0)
    ranges = Ranges(middle * 0.9, middle * 1.1, asked, asked)
    share = ranges.share_outside(seen.replicas, seen.request, tolerance)
    for bound in (most, share):
        assert ranges.is_beyond(seen.replicas, seen.request, tolerance, bound) == (share > bound)
