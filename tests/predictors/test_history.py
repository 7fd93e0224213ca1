"""Tenant history: right quantiles, apart by tenant and model, bounded."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from steersman.predictors.history import HISTORY_WIDTH, WINDOWS, RollingQuantiles, TenantHistory


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.floats(0, 1),
)
def test_rolling_quantiles_are_numpys_of_the_last_values(
    values: list[int], windows: list[int], level: float
) -> None:
    rolling = RollingQuantiles(tuple(windows))
    for value in values:
        rolling.add(value)
    for i, window in enumerate(windows):
        assert rolling.quantile(i, level) == pytest.approx(
            np.quantile(values[-window:], level), abs=1e-9
        )
    assert rolling.count == min(len(values), max(windows))


def told(history: TenantHistory, tenant: str, model: str, answers: Iterable[int]) -> TenantHistory:
    for tokens in answers:
        history.observe(tenant, model, tokens)
    return history


def test_tenants_and_models_are_apart() -> None:
    history = told(TenantHistory(), "a", "m", [100])
    told(history, "b", "m", [300])
    told(history, "a", "n", [500])
    assert history.features("a", "m") == (*(100,) * 8, 1)
    assert history.features("b", "m") == (*(300,) * 8, 1)
    assert history.features("a", "x") == (0,) * HISTORY_WIDTH


def test_an_unknown_tenant_has_the_models_answers_but_none_of_its_own() -> None:
    history = told(told(TenantHistory(), "a", "m", [100]), "b", "m", [300])
    assert history.features("c", "m") == (*(200, 280) * 4, 0)


def test_short_windows_follow_what_changed() -> None:
    history = told(TenantHistory(), "a", "m", [*[10] * 1000, *[90] * WINDOWS[0]])
    p50, p90, recent_p50, recent_p90, long_p50, long_p90, *_, answers = history.features("a", "m")
    assert (recent_p50, recent_p90) == (90, 90)
    assert (p50, long_p50, long_p90) == (10, 10, 10)
    assert p90 >= 10
    assert answers == max(WINDOWS)


def test_the_least_recently_active_tenants_are_forgotten() -> None:
    history = TenantHistory(most_tenants=2)
    for tenant in ("a", "b", "a", "c"):
        history.observe(tenant, "m", 10)
    assert len(history) == 2
    assert history.features("a", "m")[-1] == 2
    assert history.features("b", "m")[-1] == 0


def test_an_empty_answer_teaches_nothing_and_an_absurd_one_is_held() -> None:
    history = told(TenantHistory(), "a", "m", [0])
    assert len(history) == 0
    told(history, "a", "m", [2**60])
    assert history.features("a", "m")[0] == 2**31 - 1


@given(st.lists(st.integers(1, 5000), max_size=80))
def test_a_blend_lies_between_what_it_is_of(answers: list[int]) -> None:
    features = told(TenantHistory(), "a", "m", answers).features("a", "m")
    for level in range(2):
        windows = features[level:6:2]
        assert min(windows) - 1e-6 <= features[6 + level] <= max(windows) + 1e-6


def test_a_blend_follows_the_window_that_foresees_best() -> None:
    rng = np.random.default_rng(0)
    steady = told(TenantHistory(), "a", "m", rng.integers(1, 1000, 3000).tolist())
    features = steady.features("a", "m")
    assert abs(features[6] - features[4]) < abs(features[6] - features[2])
    # Another level every fifty answers: only the shortest window is ever near.
    changing = np.repeat(rng.integers(10, 1000, 40), 75)
    features = told(TenantHistory(), "b", "m", changing.tolist()).features("b", "m")
    assert features[6] == pytest.approx(features[2], rel=0.05)
