from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from steersman.agents.learned.config import EvolutionSettings, WarmPracticeSettings
from steersman.agents.learned.survey import Seen, survey
from steersman.agents.learned.weighing import SHAPE
from steersman.predictors.features import POOL_FEATURES, REPLICA_FEATURES, REQUEST_FEATURES
from steersman.predictors.length import FallbackLength
from tests.agents.learned.scenes import SMALL, ground

SETTINGS = EvolutionSettings(
    survey=5,
    warmup_s=(1.0, 2.0),
    practice=WarmPracticeSettings.model_validate(SMALL.model_dump() | {"load": (0.8, 1.0)}),
)
WIDTHS = (len(REPLICA_FEATURES), len(REQUEST_FEATURES), len(POOL_FEATURES))


def look(*, jobs: int = 1, **changes: object) -> Seen:
    settings = SETTINGS.model_copy(update=changes)
    return survey([ground()], FallbackLength(), settings, np.zeros(SHAPE), seed=0, jobs=jobs)


def test_the_same_is_seen_by_any_number_of_processes() -> None:
    one, other = look(), look(jobs=2)
    for mine, theirs in zip(one.lower + one.upper, other.lower + other.upper, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_all_features_are_seen_and_most_of_those_of_replicas_vary() -> None:
    seen = look()
    assert [len(bounds) for bounds in seen.lower] == list(WIDTHS)
    assert all(np.isfinite(bounds).all() for bounds in (*seen.lower, *seen.upper))
    assert np.mean(seen.lower[0] < seen.upper[0]) > 0.5


def test_busier_clusters_are_seen_to_be_busier() -> None:
    queue = REPLICA_FEATURES.index("queue")
    busy = SETTINGS.practice.model_copy(update={"load": (3.0, 3.0)})
    assert look(practice=busy).upper[0][queue] > look().upper[0][queue]


def test_nothing_is_seen_of_no_clusters() -> None:
    assert np.isinf(look(survey=0).lower[0]).all()


@given(st.lists(st.lists(st.floats(-1e6, 1e6, width=32), max_size=5), max_size=6))
def test_joined_are_the_ranges_of_everything_together(parts: list[list[float]]) -> None:
    def noted(*values: float) -> Seen:
        seen = Seen()
        for value in values:
            seen.note(*(np.full((1, width), value, dtype=np.float32) for width in WIDTHS))
        return seen

    joined = Seen()
    for values in parts:
        joined.join(noted(*values))
    together = noted(*(value for values in parts for value in values))
    for mine, theirs in zip(joined.lower + joined.upper, together.lower + together.upper, strict=True):
        np.testing.assert_array_equal(mine, theirs)
