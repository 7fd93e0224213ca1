"""The causal replay of widths over a run."""

from __future__ import annotations

import numpy as np
import pytest

from steersman.agents.fit.as_served import as_served
from steersman.agents.fit.latency_quality import frozen_coverage, quality, served
from steersman.agents.fit.sampling import LatencySamples, Times, join
from steersman.predictors.latency import LATENCY_FEATURES

N = 1_500


def run(seed: int, *, noise: float, load: float = 0.8) -> LatencySamples:
    """Steady traffic; TTFT and TPOT scatter by `noise` around 0.2 and 0.02 s."""
    rng = np.random.default_rng(seed)
    ttft_s = 0.2 * np.exp(noise * rng.normal(size=N))
    tpot_s = 0.02 * np.exp(noise * rng.normal(size=N))
    decided_s = np.cumsum(rng.exponential(0.1, size=N))
    times = Times(np.zeros(N, dtype=np.int64), decided_s, decided_s + ttft_s + 50.0 * tpot_s)
    rows = np.zeros((N, len(LATENCY_FEATURES)), dtype=np.float32)
    return LatencySamples(rows, ttft_s, tpot_s, np.full(N, load), times)


PREDICTED = np.tile((0.2, 0.3, 0.02, 0.03), (N, 1))


@pytest.mark.parametrize("noise", [0.1, 0.3, 0.9])
def test_a_model_too_wide_or_too_narrow_is_put_right(noise: float) -> None:
    samples = run(0, noise=noise)
    alone, learned = quality(PREDICTED, samples), quality(served(PREDICTED, samples), samples)
    for target in ("ttft", "tpot"):
        name = f"{target}_coverage_p90"
        assert 0.86 < learned[name] < 0.94
        assert abs(learned[name] - 0.9) < abs(alone[name] - 0.9) + 0.01
        assert learned[f"{target}_mdape"] == alone[f"{target}_mdape"]
        assert frozen_coverage(PREDICTED, samples)[f"{name}_frozen_load80"] == alone[f"{name}_load80"]


def test_nothing_is_known_before_its_time() -> None:
    samples = run(1, noise=0.9)
    times = samples.times
    assert times is not None
    whole = as_served(PREDICTED, times.decided_s, samples.ttft_s, samples.tpot_s, times.ended_s)
    half = N // 2
    ttft_s, tpot_s, ended_s = samples.ttft_s.copy(), samples.tpot_s.copy(), times.ended_s.copy()
    unknown = times.decided_s + ttft_s > times.decided_s[half]
    ttft_s[unknown] += 1e3
    ended_s[unknown] += 1e3
    other = ended_s > times.decided_s[half]
    tpot_s[other] *= 9.0
    again = as_served(PREDICTED, times.decided_s, ttft_s, tpot_s, ended_s)
    assert np.array_equal(whole[: half + 1], again[: half + 1])
    assert not np.array_equal(whole, again)
    shuffled = np.random.default_rng(0).permutation(N)
    mixed = as_served(
        PREDICTED[shuffled],
        times.decided_s[shuffled],
        samples.ttft_s[shuffled],
        samples.tpot_s[shuffled],
        times.ended_s[shuffled],
    )
    assert np.array_equal(mixed, whole[shuffled])


def test_every_run_begins_anew() -> None:
    parts = [run(2, noise=0.1), run(3, noise=0.9)]
    both = served(np.tile(PREDICTED, (2, 1)), join(parts))
    assert np.array_equal(both, np.concatenate([served(PREDICTED, part) for part in parts]))


def test_without_times_predictions_stay_as_they_are() -> None:
    known = run(4, noise=0.9)
    unknown = LatencySamples(known.rows, known.ttft_s, known.tpot_s, known.load)
    assert served(PREDICTED, unknown) is PREDICTED
    assert join([known, unknown]).times is None
