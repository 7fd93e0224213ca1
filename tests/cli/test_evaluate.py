from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from mlflow import MlflowClient

from steersman.agents.evaluate.constants import load_tuned
from steersman.agents.registry import EVALUATIONS, Registry
from steersman.cli import main
from tests.support.commands import mistake

ROUTING = ("routing", "--scenario", "tiny", "--requests", "60", "--window-s", "0", "--warmup-s", "2")


def run(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr(sys, "argv", ["steersman", "evaluate", *arguments])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 0
    return capsys.readouterr().out


def test_routing_prints_ratios_per_cell(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = (*ROUTING, "--loads", "0.5,0.8", "--seeds", "2", "--baselines", "p2c,random")
    out = run(arguments, monkeypatch, capsys)
    assert "J of learned over each baseline" in out  # the shipped policy
    for shown in ("tiny 50%", "tiny 80%", "all", "p2c", "random"):
        assert shown in out


def test_routing_as_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = (*ROUTING, "--loads", "0.8", "--seeds", "2", "--policy", "p2c", "--json")
    answer = json.loads(run((*arguments, "--baselines", "random,p2c"), monkeypatch, capsys))
    assert answer["policy"] == "p2c"
    assert [row["name"] for row in answer["ratios"]] == [
        "worst_cell.vs_best_baseline",
        "worst_cell.p99_ttft_vs_best_baseline",
        "cells worse than random",
        "J of p2c over random, all cells",
        "J of p2c over random, tiny 80%",
        "J1 of p2c over random, all cells",
    ]
    assert {row["policy"] for row in answer["runs"]} == {"p2c", "random"}


def test_routing_writes_a_report(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = tmp_path / "report.html"
    arguments = (*ROUTING, "--loads", "0.5,1.1", "--seeds", "1", "--baselines", "p2c,random")
    run((*arguments, "--report", str(path)), monkeypatch, capsys)
    page = path.read_text(encoding="utf-8")
    assert page.count("<svg") == 5
    assert "tiny 110%" in page
    assert f"--report {path}" in page
    assert "Aims" not in page


def test_predictors_are_judged_beside_the_rules_and_recorded(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    made_store: Callable[[Path], Path],
) -> None:
    store = made_store(tmp_path / "mlruns")
    arguments = ("predictors", "--scenario", "tiny", "--loads", "0.5", "--seeds", "1")
    options = ("--requests", "80", "--mlruns", str(store), "--json")
    rows = json.loads(run((*arguments, *options), monkeypatch, capsys))
    figures = {row["name"]: row["value"] for row in rows}
    assert figures["MdAPE of ttft of analytic, tiny 50%"] < 0.3
    assert figures["MdAPE of tpot of analytic, tiny 50%"] < 0.3
    assert 0.5 < figures["coverage p90 of output of rolling, azure-chat"] <= 1.0
    pinball = "pinball of output of {}, azure-chat"
    assert figures[pinball.format("rolling")] < figures[pinball.format("constant")]

    client = MlflowClient(Registry(store).store.uri)
    experiment = client.get_experiment_by_name(EVALUATIONS)
    assert experiment is not None
    (kept,) = client.search_runs([experiment.experiment_id])
    assert kept.data.metrics["ttft.mdape.analytic.tiny_50"] == pytest.approx(
        figures["MdAPE of ttft of analytic, tiny 50%"]
    )
    assert len(kept.data.tags["fingerprint"]) == 64
    assert kept.data.params["scenario"] == "tiny"
    drawn = {file.path for file in client.list_artifacts(kept.info.run_id, "analytic/tiny_50")}
    assert "analytic/tiny_50/ttft-calibration.svg" in drawn


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("routing", "--scenario", "tiny,mixxed"), "did you mean 'mixed'?"),
        (("routing", "--baselines", "round-robbin"), "did you mean 'round-robin'?"),
        (("routing", "--loads", "0.8,high"), "--loads: 'high' is not a number"),
        (("predictors", "--bundle", "/no/such/bundle"), "/no/such/bundle"),
    ],
)
def test_bad_input_is_one_line(
    arguments: tuple[str, ...],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in mistake(("evaluate", *arguments), monkeypatch, capsys)


def test_tuned_constants_are_written_with_the_command_that_finds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    wanted = ("tune", "--policy", "llm-d-default", "--scenario", "tiny", "--loads", "0.5")
    budget = ("--evaluations", "10", "--requests", "20", "--commit", "abc1234")
    out = run((*wanted, *budget, "--out", str(tmp_path)), monkeypatch, capsys)
    assert "llm-d-default, tiny: J" in out
    found = load_tuned("llm-d-default", "tiny", tmp_path)
    assert found.score <= 1.0
    assert set(found.options) == {"queue_weight", "kv_weight", "prefix_weight"}
    assert found.commit == "abc1234"
    assert found.command.startswith("steersman evaluate tune --policy llm-d-default --scenario tiny")


def test_saturation_is_told_per_split(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ("saturation", "--scenario", "tiny", "--splits", "tune", "--seeds", "1", "--json")
    told = json.loads(run(arguments, monkeypatch, capsys))
    assert 5.0 < told["tiny"]["tune"] < 40.0


def test_an_unknown_split_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = mistake(("evaluate", "saturation", "--splits", "test"), monkeypatch, capsys)
    assert "'test' is not a split; known: train, tune, evaluation, all" in told
