from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from steersman.env import engine
from steersman.env.cluster import Cluster
from steersman.env.counterfactual import DRAIN_S, added_costs
from steersman.env.drains import drain
from steersman.env.memory import Memory
from steersman.env.scenario import load_scenario, make_trace
from steersman.env.static_trace import as_recorded
from steersman.predictors.features import REPLICA_INDEX
from steersman.traces.scenario import Conversations, Scenario

SCENARIO = load_scenario("tiny")


def recorded(
    load: float, seed: int, scenario: Scenario = SCENARIO
) -> tuple[Memory, Cluster, np.ndarray]:
    """A cluster's memory at the start, the cluster after a run, and what was chosen."""
    trace = make_trace(scenario, seed, duration_s=12.0, load=load)
    cluster = Cluster(scenario.replicas, trace, seed=seed)
    cluster.memory.grow(1024)
    start = cluster.memory.copy()
    choices = np.full(len(trace), -1, dtype=np.int64)
    while (row := cluster.next_request()) is not None:
        cost = cluster.observe().replicas[:, REPLICA_INDEX["marginal_cost"]]
        choices[row] = int(cost.argmin())
        cluster.dispatch(int(choices[row]))
    cluster.finish()
    return start, cluster, choices


def ask(
    start: Memory, cluster: Cluster, choices: np.ndarray, rows: np.ndarray, *, horizon_s: float
) -> np.ndarray:
    """The added costs; `start` stays as it is."""
    return added_costs(
        start.copy(),
        choices,
        cluster.table.output_p50,
        rows,
        arrival_s=cluster.memory.outcomes["arrival_s"],
        parents=cluster.trace.parent,
        horizon_s=horizon_s,
    )


def whole_cost(start: Memory, choices: np.ndarray, output_p50: np.ndarray) -> float:
    """Of the whole cluster, played to the end."""
    memory = start.copy()
    engine.replay(memory.address, choices, output_p50)
    drain(memory.address, DRAIN_S)
    return float(engine.cost(memory.address))


def with_prefixes() -> Scenario:
    """Two replicas whose caches are too small for all that could be shared."""
    replicas = tuple(
        replace(spec, profile=replace(spec.profile, kv_capacity_tokens=24_000))
        for spec in SCENARIO.replicas
    )
    talks = Conversations(system_prompts=4, system_tokens=512, think_time_s=1.0)
    return replace(SCENARIO, replicas=replicas, conversations=talks)


def test_one_question_leaves_nothing_behind_for_the_next() -> None:
    start, cluster, choices = recorded(1.1, 3, with_prefixes())
    rows = np.arange(3, len(choices), 7)
    added = ask(start, cluster, choices, rows, horizon_s=20.0)
    for row, costs in zip(rows, added, strict=True):
        alone = ask(start, cluster, choices, np.array([row]), horizon_s=20.0)
        np.testing.assert_array_equal(alone[0], costs)


@pytest.mark.parametrize(("load", "seed"), [(0.5, 1), (1.3, 2)])
def test_differences_are_those_of_playing_the_whole_cluster(load: float, seed: int) -> None:
    start, cluster, choices = recorded(load, seed)
    output_p50 = cluster.table.output_p50
    rows = np.arange(5, len(choices), 23)
    added = ask(start, cluster, choices, rows, horizon_s=1e9)
    for row, costs in zip(rows, added, strict=True):
        whole = []
        for replica in range(2):
            changed = choices.copy()
            changed[row] = replica
            whole.append(whole_cost(start, changed, output_p50))
        assert costs[1] - costs[0] == pytest.approx(whole[1] - whole[0], abs=1e-6)


def test_sessions_arrive_as_recorded_without_the_later_turns_of_the_one_asked_about() -> None:
    start, cluster, choices = recorded(0.8, 5, with_prefixes())
    arrival_s, parents = cluster.memory.outcomes["arrival_s"].copy(), cluster.trace.parent
    output_p50 = cluster.table.output_p50
    rows = np.flatnonzero(np.isin(np.arange(len(choices)), parents) & ~np.isnan(arrival_s))[:8]
    added = ask(start, cluster, choices, rows, horizon_s=1e9)
    for row, costs in zip(rows, added, strict=True):
        without = arrival_s.copy()
        turn = row
        while len(later := np.flatnonzero(parents == turn)):
            turn = later[0]
            without[turn] = np.nan
        whole = []
        for replica in range(2):
            changed = choices.copy()
            changed[row] = replica
            memory = start.copy()
            memory.use_trace(as_recorded(start.trace, without))
            memory.cluster["unborn"] = 0
            whole.append(whole_cost(memory, changed, output_p50))
        assert costs[1] - costs[0] == pytest.approx(whole[1] - whole[0], abs=1e-6)


def test_a_request_adds_cost_and_the_replay_is_the_recorded_run() -> None:
    start, cluster, choices = recorded(0.6, 3)
    costs = cluster.cost_accrued
    assert whole_cost(start, choices, cluster.table.output_p50) == pytest.approx(costs)
    rows = np.arange(0, len(choices), 11)
    added = ask(start, cluster, choices, rows, horizon_s=5.0)
    assert np.isfinite(added).all()
    # A later completion may by chance be helped by a shifted iteration; on the whole, work costs.
    assert added.mean() > 0.0
    assert (added > 0.0).mean() > 0.9


def test_what_is_asked_is_left_open_when_slots_run_out() -> None:
    trace = make_trace(SCENARIO, 4, duration_s=12.0, load=2.0)
    cluster = Cluster(SCENARIO.replicas, trace, seed=4)
    slots = cluster.memory.free_slots
    choices = np.zeros(len(trace), dtype=np.int64)
    rows = np.arange(len(trace))
    added = added_costs(
        cluster.memory,
        choices,
        cluster.table.output_p50,
        rows,
        arrival_s=trace.arrival_s,
        parents=trace.parent,
        horizon_s=1.0,
    )
    assert np.isfinite(added[: slots // 2]).all()
    assert added.shape == (len(trace), 2)
