from __future__ import annotations

import numpy as np
import pytest

from steersman.env.hindsight import improved_choices
from steersman.env.memory import Memory
from steersman.env.scenario import load_scenario
from steersman.traces.errors import ConfigError
from tests.env.test_counterfactual import SCENARIO, recorded, whole_cost

ALWAYS = (-np.inf, np.inf)


def improved(
    load: float, seed: int, between: tuple[float, float] = ALWAYS
) -> tuple[Memory, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A cluster's memory at the start, output lengths, arrivals, and choices before and after."""
    start, cluster, choices = recorded(load, seed)
    arrival_s = cluster.memory.outcomes["arrival_s"]
    better = improved_choices(
        start.copy(),
        choices,
        cluster.table.output_p50,
        arrival_s=arrival_s,
        parents=cluster.trace.parent,
        from_s=between[0],
        until_s=between[1],
        horizon_s=1e6,
    )
    return start, cluster.table.output_p50, arrival_s, choices, better


@pytest.mark.parametrize(("load", "seed"), [(0.6, 1), (0.9, 2), (1.3, 3)])
def test_no_run_becomes_dearer(load: float, seed: int) -> None:
    start, output_p50, _, choices, better = improved(load, seed)
    assert (better != choices).any()
    assert whole_cost(start, better, output_p50) < whole_cost(start, choices, output_p50)


def test_only_requests_of_the_stretch_are_chosen_anew() -> None:
    start, output_p50, arrival_s, choices, better = improved(1.0, 4, (4.0, 8.0))
    changed = better != choices
    assert changed.any()
    assert ((arrival_s[changed] >= 4.0) & (arrival_s[changed] < 8.0)).all()
    assert whole_cost(start, better, output_p50) < whole_cost(start, choices, output_p50)


def test_what_was_recorded_stays_as_it_was() -> None:
    start, _, _, choices, better = improved(0.9, 5)
    assert better is not choices
    again = improved(0.9, 5)[-1]
    np.testing.assert_array_equal(again, better)
    assert start.pending == -1


def test_shared_gpus_are_refused() -> None:
    assert SCENARIO.name == load_scenario("tiny").name
    start, cluster, choices = recorded(0.6, 1)
    start.cluster["coupled"] = 1
    with pytest.raises(ConfigError, match="sharing"):
        improved_choices(
            start,
            choices,
            cluster.table.output_p50,
            arrival_s=cluster.memory.outcomes["arrival_s"],
            parents=cluster.trace.parent,
            from_s=0.0,
            until_s=1.0,
            horizon_s=1.0,
        )
