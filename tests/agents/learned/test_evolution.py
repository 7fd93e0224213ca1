from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from steersman.agents.learned.config import (
    EarlyPracticeSettings,
    EarlySettings,
    EvolutionSettings,
    WarmPracticeSettings,
)
from steersman.agents.learned.evolution import Evolution
from steersman.agents.learned.ground import Ground
from steersman.agents.learned.playing import Choose, Played, warm_up
from steersman.agents.learned.weighing import SHAPE
from steersman.env.cluster import Cluster
from steersman.predictors.length import FallbackLength
from steersman.traces.errors import ConfigError
from tests.agents.learned.scenes import SMALL, ground

SETTINGS = EvolutionSettings(
    population=6,
    clusters=3,
    warmup_s=(1.0, 2.0),
    practice=WarmPracticeSettings.model_validate(SMALL.model_dump() | {"load": (0.8, 1.0)}),
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


def told_without_and_with_tail(tail_allowance: float) -> list[list[float]]:
    searches = [evolution(tail_weight=weight, tail_allowance=tail_allowance) for weight in (0.0, 1e6)]
    for search in searches:
        search.step()
    return [search.told[0] for search in searches]


def test_the_weight_of_the_tail_decides_what_is_preferred() -> None:
    by_j, by_both = (np.array(told) for told in told_without_and_with_tail(tail_allowance=0.01))
    assert not np.allclose(by_j, by_both)
    bound = SETTINGS.most_difference
    assert np.abs(by_both - by_j).max() <= bound + 1e-12, "the tail's part alone"


def test_a_tail_that_is_short_enough_counts_no_more() -> None:
    without, with_tail = told_without_and_with_tail(tail_allowance=1e3)
    assert without == with_tail


EARLY = EarlySettings(
    generations=2,
    spread=SETTINGS.spread,
    practice=EarlyPracticeSettings.model_validate(SETTINGS.practice.model_dump()),
)


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


@pytest.mark.parametrize("reuses", [False, True])
def test_early_generations_are_warm_only_where_prompts_share_prefixes(
    reuses: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Ground, "reuses", reuses)
    cold, early, warm = (
        evolution(warmup_s=(0.0, 0.0)),
        evolution(early=EARLY, warmup_s=(5.0, 5.0)),
        evolution(warmup_s=(5.0, 5.0)),
    )
    like, unlike = (warm, cold) if reuses else (cold, warm)
    assert early.step() == like.step() != unlike.step()
    assert early.told == like.told != unlike.told


def test_warm_clusters_were_played_by_the_mean_up_to_their_episode(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[float, float]] = []

    def watched(clusters: Sequence[Cluster], choose: Choose, until_s: NDArray[np.float64]) -> Any:
        warm = warm_up(clusters, choose, until_s)
        for cluster, end_s in zip(warm, until_s.tolist(), strict=True):
            arrived = cluster.memory.outcomes["arrival_s"]
            begun.append((float(np.nanmax(arrived)), end_s))
            assert (cluster.memory.outcomes["replica"][np.isfinite(arrived)] >= 0).all()
        return warm

    monkeypatch.setattr("steersman.agents.learned.evolution.warm_up", watched)
    evolution(warmup_s=(5.0, 8.0)).step()
    assert len(begun) == SETTINGS.clusters
    assert all(2.0 < last_s <= end_s for last_s, end_s in begun)
    assert all(5.0 <= end_s <= 8.0 for _, end_s in begun)


def test_a_search_is_resumed_on_either_side_of_the_early_generations() -> None:
    for before in (1, 2, 3):
        first = evolution(early=EARLY)
        for _ in range(before):
            first.step()
        second = evolution(early=EARLY)
        second.repeat(first.told)
        assert second.step() == first.step()


def test_early_generations_alone_are_refused() -> None:
    with pytest.raises(ValueError, match=r"early\.generations = 3 leaves none of generations = 3"):
        EvolutionSettings(generations=3, early=EarlySettings(generations=3))


def test_a_warmup_does_not_end_before_it_begins() -> None:
    with pytest.raises(ValueError, match="give times of at least 0"):
        EvolutionSettings(warmup_s=(-1.0, 2.0))


def test_an_episode_in_which_nobody_arrives_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    search = evolution()

    def nobody(coefficients: NDArray[np.float64]) -> Played:
        return Played(
            *np.stack([np.zeros((3, len(coefficients))), np.full((3, len(coefficients)), np.nan)])
        )

    monkeypatch.setattr(search, "_play", nobody)
    with pytest.raises(ConfigError, match="give more episode_requests"):
        search.step()


@pytest.mark.parametrize("loss_weight", [0.0, 0.5])
def test_what_is_lost_to_marginal_cost_counts_more(
    monkeypatch: pytest.MonkeyPatch, loss_weight: float
) -> None:
    search = evolution(loss_weight=loss_weight, tail_weight=0.0)
    # Of three clusters the first candidate gains 3 % on one, loses as much on another; the others have
    # marginal cost's J, or half of it, everywhere.
    log_j = np.zeros((3, SETTINGS.population + 2))
    log_j[:, 0] = (0.03, -0.03, 0.0)
    log_j[:, 1] = np.log(0.5)
    played = Played(np.exp(log_j), np.ones_like(log_j))
    monkeypatch.setattr(search, "_play", lambda _: played)
    search.step()
    uneven, better, alike, *_ = search.told[0]
    assert uneven - alike == pytest.approx(loss_weight * 0.03 / 3, abs=1e-12)
    assert alike - better == pytest.approx(SETTINGS.most_difference, abs=1e-12), "the cap, once"
