"""A refit has to prove itself."""

from __future__ import annotations

import numpy as np
import pytest

from steersman.agents.refit.judge import Part, compare, pinball_losses

RNG = np.random.default_rng(0)
ACTUAL = np.exp(RNG.normal(0.0, 0.5, 2_000))
NOISE = np.exp(RNG.normal(0.0, 0.2, 2_000))


def guess(factor: float, *, spread: float = 1.3) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    p50 = ACTUAL * NOISE * factor
    return np.stack((p50, p50 * spread), axis=1)


def test_a_better_model_is_better() -> None:
    verdict = compare({"ttft": Part(ACTUAL, guess(1.4), guess(1.0), 0.02)})
    assert verdict.better
    assert verdict.figures["ttft.new.mdape"] < verdict.figures["ttft.old.mdape"]
    assert verdict.figures["gain"] > 0.1


def test_a_worse_one_is_not() -> None:
    verdict = compare({"ttft": Part(ACTUAL, guess(1.0), guess(1.4), 0.02)})
    assert not verdict.better
    assert "would become" in verdict.reason


def test_the_same_one_is_not_either() -> None:
    assert not compare({"ttft": Part(ACTUAL, guess(1.0), guess(1.0), 0.02)}).better


def test_a_small_gain_may_be_chance() -> None:
    few = slice(0, 60)
    jitter = np.exp(np.random.default_rng(5).normal(0.0, 0.3, 60))[:, None]
    old, new = guess(1.0)[few] * jitter, guess(1.0)[few] * jitter[::-1]
    verdict = compare({"ttft": Part(ACTUAL[few], old, new, 0.02)})
    assert not verdict.better


def test_one_part_may_not_pay_for_another() -> None:
    verdict = compare(
        {
            "ttft": Part(ACTUAL, guess(2.0), guess(1.0), 0.02),
            "tpot": Part(ACTUAL, guess(1.0), guess(1.2), 0.002),
        }
    )
    assert not verdict.better
    assert verdict.reason.startswith("tpot would become")


def test_what_has_no_value_is_not_judged() -> None:
    actual = ACTUAL.copy()
    actual[::2] = np.nan
    actual[1::4] = 0.0
    verdict = compare({"tpot": Part(actual, guess(1.4), guess(1.0), 0.002)})
    assert verdict.better
    assert verdict.figures["tpot.new.coverage_p90"] > 0.8


def test_pinball_losses_are_those_of_the_definition() -> None:
    losses = pinball_losses(np.array([2.0]), np.array([[1.0, 4.0]]))
    assert losses == pytest.approx(0.5 * 1.0 + 0.1 * 2.0)
