from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from steersman.agents.ranges import Ranges
from steersman.agents.samples import sample_observation
from steersman.predictors.features import (
    REPLICA_FEATURES,
    REPLICA_INDEX,
    REQUEST_FEATURES,
    REQUEST_INDEX,
)
from steersman.traces.errors import ArtifactError

F, Q = len(REPLICA_FEATURES), len(REQUEST_FEATURES)


def unit() -> Ranges:
    return Ranges(
        np.zeros(F, np.float32), np.ones(F, np.float32), np.zeros(Q, np.float32), np.ones(Q, np.float32)
    )


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 12))
@settings(max_examples=40, deadline=None)
def test_nothing_lies_outside_the_ranges_it_was_made_of(seed: int, n: int) -> None:
    seen = sample_observation(np.random.default_rng(seed), n)
    ranges = Ranges.of(seen.replicas[seen.mask], seen.request)
    assert ranges.share_outside(seen.replicas[seen.mask], seen.request, 0.0) == 0.0


def test_the_share_counts_allowed_candidates_and_the_request() -> None:
    seen = sample_observation(np.random.default_rng(0), 3, allowed=3)
    seen.mask[:] = [True, True, False]
    seen.replicas[:], seen.request[:] = 0.5, 0.5
    seen.replicas[2] = 99.0  # masked
    assert unit().share_outside(seen.replicas[seen.mask], seen.request, 0.0) == 0.0
    seen.replicas[0, 0] = 1.2
    seen.request[0] = np.nan
    assert unit().share_outside(seen.replicas[seen.mask], seen.request, 0.1) == pytest.approx(
        2 / (2 * F + Q)
    )
    assert unit().share_outside(seen.replicas[seen.mask], seen.request, 0.3) == pytest.approx(
        1 / (2 * F + Q)
    )


def test_a_feature_that_never_varied_notices_another_constant() -> None:
    seen = sample_observation(np.random.default_rng(0), 2, allowed=2)
    column = REPLICA_INDEX["max_num_seqs"]
    ranges = Ranges.of(seen.replicas, seen.request)
    seen.replicas[:, column] *= 1.2
    assert ranges.share_outside(seen.replicas[seen.mask], seen.request, 0.25) == 0.0
    seen.replicas[:, column] *= 2.0
    assert ranges.share_outside(seen.replicas[seen.mask], seen.request, 0.25) == pytest.approx(
        2 / (2 * F + Q)
    )


def test_what_the_policy_does_not_read_may_be_anything_finite() -> None:
    seen = sample_observation(np.random.default_rng(0), 2, allowed=2)
    unread = [REQUEST_INDEX["hour_sin"], REQUEST_INDEX["prefix_blocks"]]
    ranges = Ranges.of(seen.replicas, seen.request)
    seen.request[unread] = -0.7, 4096.0
    assert ranges.share_outside(seen.replicas[seen.mask], seen.request, 0.25) == pytest.approx(
        2 / (2 * F + Q)
    )
    ranges = ranges.regardless_of(unread)
    assert ranges.share_outside(seen.replicas[seen.mask], seen.request, 0.25) == 0.0
    seen.request[unread[0]] = np.nan
    assert ranges.share_outside(seen.replicas[seen.mask], seen.request, 0.25) == pytest.approx(
        1 / (2 * F + Q)
    )


def test_bounds_of_other_features_are_refused() -> None:
    good = np.zeros(F, np.float32)
    request = np.zeros(Q, np.float32)
    with pytest.raises(ArtifactError, match="retrain"):
        Ranges(good[1:], good[1:], request, request)
    with pytest.raises(ArtifactError, match="'running'"):
        Ranges(good + 1, good, request, request)
    with pytest.raises(ArtifactError, match="not a number"):
        Ranges(good, good, request * np.nan, request)
