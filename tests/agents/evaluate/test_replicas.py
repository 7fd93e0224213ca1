from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from steersman.agents.evaluate.contestants import contestants
from steersman.agents.evaluate.replicas import ATTAINMENT, FEWEST, MOST, Needed, least, replicas_needed
from steersman.agents.evaluate.run import Protocol
from steersman.env.scenario import load_scenario


class Curve:
    """Attainment that is linear in replicas and reaches the level where it should, by seed."""

    def __init__(self, crossings: list[float]) -> None:
        self.crossings = np.array(crossings)
        self.asked: list[int] = []

    def __call__(self, replicas: int) -> NDArray[np.float64]:
        assert FEWEST <= replicas <= MOST
        self.asked.append(replicas)
        share: NDArray[np.float64] = ATTAINMENT + 0.001 * (replicas - self.crossings)
        return share


@given(st.lists(st.floats(FEWEST + 0.01, MOST - 0.01), min_size=1, max_size=6))
def test_the_crossing_is_found_for_every_seed(crossings: list[float]) -> None:
    curve = Curve(crossings)
    needed = least("it", curve, len(crossings))
    np.testing.assert_allclose(needed.by_seed, crossings, atol=1e-6)
    assert (needed.beyond, needed.enough) == (0, 0)
    assert len(set(curve.asked)) == len(curve.asked)
    assert len(curve.asked) <= 6 * len(crossings)


def test_seeds_that_agree_share_their_runs() -> None:
    curve = Curve([11.2, 11.3, 11.6, 11.9])
    least("it", curve, 4)
    assert len(curve.asked) <= 6


def test_what_lies_outside_is_said() -> None:
    needed = least("it", Curve([2.0, 40.0, 8.5]), 3)
    np.testing.assert_allclose(needed.by_seed, [FEWEST, MOST, 8.5])
    assert (needed.beyond, needed.enough) == (1, 1)


def test_ratios_are_paired() -> None:
    half = Needed("half", np.array([5.0, 6.0, 7.0])).over(Needed("it", np.array([10.0, 12.0, 14.0])))
    assert (half.lo, half.value, half.hi) == pytest.approx((0.5, 0.5, 0.5))


def test_slow_replicas_make_round_robin_need_more() -> None:
    mixed = replace(load_scenario("mixed"), saturation_rps=30.0, split_saturation_rps={})
    protocol = Protocol(loads=(1.0,), seeds=(0,), requests=200, window_s=0.0, warmup_s=5.0)
    runs: list[float] = []
    needed = replicas_needed(
        contestants(["round-robin", "marginal-cost"]), mixed, protocol, on_progress=runs.append
    )
    assert needed["marginal-cost"].over(needed["round-robin"]).hi < 1.0
    assert sum(runs) <= 2 * 6
    with pytest.raises(ValueError, match="must be one"):
        replicas_needed(contestants(["p2c"]), mixed, replace(protocol, loads=(0.5, 1.0)))
