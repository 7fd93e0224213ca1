from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace

import numpy as np
import pytest

from steersman.agents.evaluate.figures import summarise
from steersman.agents.evaluate.run import PolicyFactory, Protocol, evaluate, policy_factory, run_count
from steersman.agents.evaluate.table import Cell, EvaluationTable
from steersman.agents.guard import Clock, FallbackReason, Guard, GuardSettings
from steersman.agents.policies import make_policy
from steersman.agents.policy import Policy
from steersman.env.bulk import output_quantiles
from steersman.env.cluster import Cluster
from steersman.env.scenario import load_scenario, load_source, make_trace
from steersman.predictors.length import FallbackLength
from steersman.traces.errors import ConfigError
from steersman.traces.scenario import Scenario
from steersman.traces.schema import Decision, Observation

SHORT = Protocol(loads=(0.6, 0.9), seeds=(0, 1), requests=150, window_s=0.0, warmup_s=5.0)


@pytest.fixture(scope="module")
def scenario() -> Scenario:
    return replace(load_scenario("tiny"), saturation_rps=10.0)


def factories(*names: str) -> dict[str, PolicyFactory]:
    return {name: policy_factory(name) for name in names}


@pytest.fixture(scope="module")
def table(scenario: Scenario) -> EvaluationTable:
    return evaluate(factories("random", "marginal-cost"), [scenario], SHORT)


def test_every_policy_runs_once_in_every_cell_with_every_seed(table: EvaluationTable) -> None:
    assert table.policies == ("random", "marginal-cost")
    assert table.cells == (Cell("tiny", 0.6), Cell("tiny", 0.9))
    assert len(table.runs) == run_count(2, 1, SHORT) == 8
    assert {run.seed for run in table.runs} == {0, 1}


def test_all_policies_meet_the_same_arrivals(table: EvaluationTable) -> None:
    for cell in table.cells:
        counts = [table.by_seed(policy, cell, "requests").tolist() for policy in table.policies]
        assert counts[0] == counts[1]
        assert counts[0][0] != counts[0][1], "seeds differ"


def test_the_same_evaluation_gives_the_same_figures(scenario: Scenario, table: EvaluationTable) -> None:
    again = evaluate(factories("random", "marginal-cost"), [scenario], SHORT)
    assert again == table


def test_processes_share_the_work_and_change_no_figure(
    scenario: Scenario, table: EvaluationTable
) -> None:
    done: list[float] = []
    policies = factories("random", "marginal-cost")
    shared = evaluate(policies, [scenario], SHORT, jobs=2, on_progress=done.append)
    assert shared == table
    assert sum(done) == pytest.approx(len(table.runs))


def test_scenarios_of_other_sizes_play_side_by_side(scenario: Scenario) -> None:
    smaller = replace(scenario, name="smaller", replicas=scenario.replicas[:-1], saturation_rps=7.0)
    names = factories("marginal-cost", "p2c", "llm-d-default")
    both = evaluate(names, [scenario, smaller], SHORT)
    assert evaluate(names, [smaller], SHORT).runs == both.runs[len(both.runs) // 2 :]


def test_who_else_competes_changes_nobodys_figures(scenario: Scenario, table: EvaluationTable) -> None:
    alone = evaluate(factories("marginal-cost"), [scenario], SHORT)
    assert alone.runs == tuple(run for run in table.runs if run.policy == "marginal-cost")


def test_lockstep_equals_playing_each_cluster_alone(scenario: Scenario, table: EvaluationTable) -> None:
    rate_rps = 0.9 * 10.0
    end_s = 5.0 + 150 / rate_rps
    trace = make_trace(
        scenario, 1, duration_s=end_s, load=0.9, source=load_source(scenario, "evaluation")
    )
    cluster = Cluster(
        scenario.replicas,
        trace,
        output_quantiles=output_quantiles(trace, FallbackLength()),
        staleness=scenario.staleness,
        prefix_cache=scenario.prefix_cache,
        seed=1,
    )
    policy = make_policy("marginal-cost", seed=1)
    while cluster.next_request() is not None:
        cluster.dispatch(policy.decide(cluster.observe()).choice)
    cluster.finish()
    figures = summarise(cluster.outcomes(), start_s=5.0, end_s=end_s, replicas=len(scenario.replicas))
    run = next(
        run for run in table.runs if (run.policy, run.cell.load, run.seed) == ("marginal-cost", 0.9, 1)
    )
    assert figures == run.figures


def test_looking_beats_drawing_lots(table: EvaluationTable) -> None:
    ratio = table.ratio("marginal-cost", "random")
    assert ratio.lo <= ratio.value <= ratio.hi < 1.0


def test_progress_adds_up_to_the_number_of_runs(scenario: Scenario) -> None:
    done: list[float] = []
    evaluate(factories("random", "p2c"), [scenario], SHORT, on_progress=done.append)
    assert sum(done) == pytest.approx(run_count(2, 1, SHORT))
    assert len(done) > 10


def test_requests_outside_the_window_are_not_counted(scenario: Scenario) -> None:
    long = replace(SHORT, loads=(0.6,), seeds=(0,), warmup_s=0.0, requests=200)
    late = replace(long, warmup_s=20.0, requests=80)
    everything = evaluate(factories("random"), [scenario], long).runs[0].figures.requests
    counted = evaluate(factories("random"), [scenario], late).runs[0].figures.requests
    assert 0 < counted < everything


def test_a_guard_runs_on_the_simulated_clock_and_its_trips_are_counted(scenario: Scenario) -> None:
    class Broken:
        name, version = "broken", "1"

        def __init__(self, clock: Clock, times: list[float]) -> None:
            self._clock, self._times = clock, times

        def decide(self, observation: Observation) -> Decision:
            self._times.append(self._clock())
            raise RuntimeError

    times: list[float] = []

    def guarded(seed: int, clock: Clock) -> Policy:
        settings = GuardSettings(latch_trips=10, latch_hold_s=5.0)
        return Guard.make(Broken(clock, times), settings, seed=seed, clock=clock)

    protocol = replace(SHORT, loads=(0.6,), seeds=(0,))
    table = evaluate({"broken": guarded, **factories("marginal-cost")}, [scenario], protocol)
    cell = table.cells[0]
    trips = table.fallbacks("broken", cell)
    assert trips[FallbackReason.ERROR] == len(times) > 10
    assert trips[FallbackReason.LATCHED] > 0
    # Held 5 simulated seconds each time, it was asked again in between.
    assert times == sorted(times)
    assert max(np.diff(times)) >= 5.0
    # Its fallback is marginal cost, so it serves as well as that.
    assert table.by_seed("broken", cell) == pytest.approx(table.by_seed("marginal-cost", cell))


def test_nothing_to_do_and_unknown_saturation_are_refused(scenario: Scenario) -> None:
    empty: Sequence[Scenario] = []
    with pytest.raises(ConfigError, match="nothing to evaluate"):
        evaluate(factories("random"), empty, SHORT)
    with pytest.raises(ConfigError, match="saturation_rps"):
        evaluate(factories("random"), [replace(scenario, saturation_rps=None)], SHORT)
    with pytest.raises(ConfigError, match="did you mean 'random'"):
        factories("randon")


def test_a_ratio_needs_both_policies(table: EvaluationTable) -> None:
    with pytest.raises(ConfigError, match="'p2c' was not run; run: random, marginal-cost"):
        table.ratio("p2c", "random")


def test_rows_are_figures_with_intervals(table: EvaluationTable) -> None:
    rows = table.rows("random")
    assert [set(row) for row in rows] == [{"name", "value", "lo", "hi", "unit", "note"}] * 3
    assert rows[0]["value"] == pytest.approx(table.ratio("marginal-cost", "random").value)
    flat = table.as_dict()["runs"][0]
    assert flat["policy"] == "random"
    assert flat["j"] == asdict(table.runs[0].figures)["j"]


def test_idle_and_overloaded_cells_are_summed_up_apart(
    scenario: Scenario, table: EvaluationTable
) -> None:
    assert list(table.groups()) == ["all cells"]
    protocol = replace(SHORT, loads=(0.4, 0.8, 0.95, 1.2), seeds=(0,), requests=40)
    wide = evaluate(factories("random", "marginal-cost"), [scenario], protocol)
    loads = {where: [cell.load for cell in cells] for where, cells in wide.groups().items()}
    assert loads == {"40% load": [0.4], "usual loads": [0.8, 0.95], "120% load": [1.2]}
    rows = {row["name"]: row["value"] for row in wide.rows("random")}
    usual = wide.ratio("marginal-cost", "random", cells=wide.groups()["usual loads"])
    assert rows["J of marginal-cost over random, usual loads"] == usual.value
    assert "J of marginal-cost over random, all cells" not in rows


def test_every_cell_has_a_verdict_and_a_best_baseline(table: EvaluationTable) -> None:
    verdicts = table.not_worse("marginal-cost", "random")
    assert set(verdicts) == set(table.cells)
    assert all(verdict.ratio < 1.0 for verdict in verdicts.values())
    assert {table.best(cell, table.policies) for cell in table.cells} == {"marginal-cost"}
    assert table.rows("random", figure="j1")[0]["name"] == "J1 of marginal-cost over random, all cells"


def test_a_load_is_of_the_saturation_of_the_split_that_is_played(scenario: Scenario) -> None:
    own = replace(scenario, split_saturation_rps={"evaluation": 5.0})
    protocol = replace(SHORT, loads=(0.6,), seeds=(0,))
    slow = evaluate(factories("marginal-cost"), [own], protocol).runs[0].figures
    fast = evaluate(factories("marginal-cost"), [scenario], protocol).runs[0].figures
    assert slow.ttft_mean_s < fast.ttft_mean_s
    tuned = evaluate(factories("marginal-cost"), [own], replace(protocol, split="tune")).runs[0].figures
    assert tuned.goodput_rps > 1.5 * slow.goodput_rps
