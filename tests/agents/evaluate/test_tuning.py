from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from steersman.agents.evaluate.constants import load_tuned
from steersman.agents.evaluate.tune import TUNING, tune
from steersman.agents.evaluate.tuning import TuningPlan
from steersman.env.scenario import load_scenario
from steersman.predictors.latency import AnalyticLatency

SHORT = replace(TUNING, loads=(1.1,), requests=40, warmup_s=3.0, tail_s=0.0)
SCENARIOS = tuple(
    replace(load_scenario("tiny"), name=name, saturation_rps=rps)
    for name, rps in (("a", 14.0), ("b", 9.0))
)


class Named(AnalyticLatency):
    version = "forest-1"


def plan(folder: Path, *, once: bool = False) -> TuningPlan:
    return TuningPlan(
        ("prequal", "llm-d-sticky"),
        SCENARIOS,
        once=once,
        protocol=SHORT,
        evaluations=10,
        commit="abc",
        folder=folder,
    )


def test_every_search_is_written_down_whoever_did_it(tmp_path: Path) -> None:
    runs: list[float] = []
    found = plan(tmp_path / "one").carry_out(1, runs.append)
    assert [(one.tuned.policy, one.where) for one in found] == [
        (policy, where) for policy in ("prequal", "llm-d-sticky") for where in ("a", "b")
    ]
    assert sum(runs) == pytest.approx(4 * 11)
    plan(tmp_path / "two").carry_out(2, runs.append)
    for one in found:
        again = tmp_path / "two" / one.path.relative_to(tmp_path / "one")
        assert again.read_text() == one.path.read_text()
    assert found[0].tuned == tune("prequal", SCENARIOS[:1], protocol=SHORT, evaluations=10)


def test_once_is_one_search_a_policy(tmp_path: Path) -> None:
    found = plan(tmp_path, once=True).carry_out(2, lambda runs: None)
    assert [one.where for one in found] == ["all", "all"]
    written = load_tuned("prequal", "all", tmp_path)
    assert written.scenarios == ["a", "b"]
    assert (
        " --scenario a,b --once --evaluations 10 --requests 40 --loads 1.1 --seed 0" in written.command
    )


def test_models_that_predict_are_named(tmp_path: Path) -> None:
    trained = replace(
        plan(tmp_path), policies=("predicted-latency",), latency=Named(), bundle="models-7"
    )
    trained.carry_out(1, lambda runs: None)
    written = load_tuned("predicted-latency", "a", tmp_path)
    assert written.bundle == "models-7"
    assert written.command.endswith("--bundle DIR")
