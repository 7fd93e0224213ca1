from __future__ import annotations

import numpy as np
import pytest

from steersman.agents.learned.config import EarlySettings, EvolutionSettings
from steersman.agents.learned.evolution import Evolution
from steersman.agents.learned.weighing import SHAPE
from steersman.predictors.length import FallbackLength
from tests.agents.learned.scenes import SMALL, ground

SETTINGS = EvolutionSettings(
    population=6,
    clusters=3,
    warmup_s=(1.0, 2.0),
    practice=SMALL.model_copy(update={"load": (0.8, 1.0)}),
    averaged=0.5,
)


def evolution(*, jobs: int = 1, seed: int = 0, **changes: object) -> Evolution:
    settings = SETTINGS.model_copy(update=changes)
    return Evolution([ground()], FallbackLength(), settings, np.zeros(SHAPE), seed=seed, jobs=jobs)


def test_the_same_seed_finds_the_same_with_any_number_of_processes() -> None:
    one, other = evolution(), evolution(jobs=2)
    assert [one.step() for _ in range(2)] == [other.step() for _ in range(2)]
    np.testing.assert_array_equal(one.result, other.result)
    assert evolution(seed=1).step() != evolution().step()


def test_it_begins_at_marginal_cost() -> None:
    search = evolution()
    np.testing.assert_array_equal(search.result, 0.0)
    assert search.step().centre == pytest.approx(1.0, abs=1e-12)


def test_a_search_that_is_repeated_goes_on_where_the_first_one_was() -> None:
    first = evolution()
    for _ in range(2):
        first.step()
    second = evolution()
    second.repeat(first.told)
    np.testing.assert_array_equal(second.result, first.result)
    assert second.step() == first.step()


def test_the_result_averages_the_last_generations() -> None:
    searches = [evolution(averaged=share) for share in (1e-9, 1.0)]
    for search in searches:
        for _ in range(3):
            search.step()
    last, averaged = (search.result for search in searches)
    assert searches[0].told == searches[1].told
    assert not np.allclose(last, averaged)
    assert np.abs(averaged).max() < np.abs(last).max() * 3


def test_one_episode_cannot_outvote_the_others() -> None:
    bound = 1e-6
    search = evolution(most_difference=bound)
    search.step()
    assert np.abs(search.told[0]).max() <= 2 * bound, "once for J, once for the tail"


def test_the_weight_of_the_tail_decides_what_is_preferred() -> None:
    told = []
    for weight in (0.0, 1e6):
        search = evolution(tail_weight=weight, tail_allowance=0.01)
        search.step()
        told.append(search.told[0])
    by_j, by_both = map(np.array, told)
    assert not np.allclose(by_j, by_both)
    bound = SETTINGS.most_difference
    assert np.abs(by_both - by_j).max() <= bound + 1e-12, "the tail's part alone"


def test_a_tail_that_is_short_enough_counts_no_more() -> None:
    told = []
    for weight in (0.0, 1e6):
        search = evolution(tail_weight=weight, tail_allowance=1e3)
        search.step()
        told.append(search.told[0])
    assert told[0] == told[1]


def test_candidates_part_in_clusters_that_the_mean_has_warmed_up() -> None:
    cold, warm = (evolution(warmup_s=bounds).step() for bounds in ((0.0, 0.0), (5.0, 5.0)))
    assert cold != warm
    assert warm.centre == pytest.approx(1.0, abs=1e-12), "with coefficients of 0 like marginal cost"


EARLY = EarlySettings(generations=2, practice=SMALL.model_copy(update={"load": (0.8, 1.0)}))


def test_after_the_early_generations_it_begins_anew_where_they_came_to() -> None:
    search = evolution(early=EARLY)
    search.step()
    search.step()
    found = search.result
    assert found.any(), "the early ones moved"
    assert search.step().centre != 1.0
    again = evolution(early=EARLY, spread=1e-9)
    again.repeat(search.told)
    np.testing.assert_allclose(again.result, found, atol=1e-6)


def test_early_generations_start_from_empty_clusters() -> None:
    cold = evolution(warmup_s=(0.0, 0.0)).step()
    assert evolution(early=EARLY, warmup_s=(5.0, 5.0)).step().centre == cold.centre
    assert evolution(early=EARLY, warmup_s=(5.0, 5.0)).step().population != pytest.approx(
        evolution(warmup_s=(5.0, 5.0)).step().population, rel=1e-9
    )


def test_a_search_is_resumed_on_either_side_of_the_early_generations() -> None:
    for before in (1, 2, 3):
        first = evolution(early=EARLY)
        for _ in range(before):
            first.step()
        second = evolution(early=EARLY)
        second.repeat(first.told)
        assert second.step() == first.step()
