from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from steersman.agents.evaluate.predictions import judge, judge_latency, pinball
from steersman.agents.evaluate.run import Protocol
from steersman.env.scenario import load_scenario
from steersman.predictors.latency import AnalyticLatency


def test_a_perfect_predictor() -> None:
    actual = np.array([0.1, 0.2, 0.4])
    quality = judge("oracle", "ttft", "here", actual, actual, actual)
    assert (quality.mdape, quality.coverage_p90, quality.pinball, quality.cases) == (0.0, 1.0, 0.0, 3)


def test_relative_errors_leave_out_what_is_too_short() -> None:
    actual = np.array([0.001, 0.2, 0.2])
    p50 = np.array([9.0, 0.1, 0.1])
    quality = judge("half", "ttft", "here", actual, p50, 2 * p50)
    assert quality.mdape == pytest.approx(0.5)
    assert quality.cases == 2
    assert quality.coverage_p90 == 1.0


def test_the_pinball_loss_is_least_at_the_quantile() -> None:
    actual = np.random.default_rng(0).exponential(size=20_000)
    best = np.quantile(actual, 0.9)
    losses = [pinball(actual, np.full_like(actual, best + shift), 0.9) for shift in (-0.2, 0.0, 0.2)]
    assert losses[1] == min(losses)


def test_an_inverted_predictor_is_found_out() -> None:
    class Doubled(AnalyticLatency):
        def predict(
            self, replicas: NDArray[np.float32], request: NDArray[np.float32]
        ) -> NDArray[np.float64]:
            return 2.0 * super().predict(replicas, request)

    scenario = load_scenario("tiny")
    protocol = Protocol(loads=(0.5,), seeds=(0,), requests=80, window_s=0.0, warmup_s=2.0)
    done: list[float] = []
    found = judge_latency(
        {"plain": AnalyticLatency(), "doubled": Doubled()}, scenario, protocol, on_progress=done.append
    )
    assert done == [1.0]
    for quality in found:
        frozen = quality.coverage_p90_frozen
        assert frozen is not None
        assert quality.rows()[-1]["value"] == frozen
        assert abs(quality.coverage_p90 - 0.9) <= max(abs(frozen - 0.9), 0.06)
    mdape = {(quality.predictor, quality.quantity): quality.mdape for quality in found}
    for quantity in ("ttft", "tpot"):
        assert mdape["plain", quantity] < 0.3
        assert mdape["doubled", quantity] > 0.6


def test_figures_name_what_they_measure() -> None:
    actual = np.array([10.0, 20.0])
    quality = replace(judge("model", "output", "azure-chat", actual, actual, actual), mdape=0.25)
    rows = quality.rows()
    assert rows[0]["name"] == "MdAPE of output of model, azure-chat"
    assert [row["unit"] for row in rows] == ["ratio", "ratio", "tokens"]
    assert rows[0]["value"] == 0.25
