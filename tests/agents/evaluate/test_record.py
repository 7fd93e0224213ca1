from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from steersman.agents.evaluate.course import Protocol
from steersman.agents.evaluate.factories import policy_factory
from steersman.agents.evaluate.record import RunRecord, contents_hash
from steersman.agents.evaluate.standard import Part, evaluate_parts
from steersman.agents.evaluate.table import EvaluationTable
from steersman.env.scenario import load_scenario
from steersman.traces.errors import ConfigError

PROTOCOL = Protocol(loads=(0.6, 0.8), seeds=(0, 1), requests=30, window_s=0.0, warmup_s=1.0)


def parts(*protocols: Protocol) -> list[Part]:
    return [Part(load_scenario("tiny"), protocol) for protocol in protocols or (PROTOCOL,)]


def run(names: list[str], of: list[Part], record: RunRecord | None) -> tuple[EvaluationTable, float]:
    done: list[float] = []
    contestants = {name: policy_factory(name) for name in names}
    table = evaluate_parts(contestants, of, on_progress=done.append, record=record)
    return table, sum(done)


def test_what_is_known_is_not_run_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    first, _ = run(["random", "p2c"], parts(), RunRecord(file))
    size = file.stat().st_size
    again, done = run(["random", "p2c"], parts(), RunRecord(file))
    assert again == first
    assert done == len(first.runs) == 8
    assert file.stat().st_size == size
    assert again == run(["random", "p2c"], parts(), None)[0]


def test_a_policy_that_is_added_is_run_alone(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    run(["p2c"], parts(), RunRecord(file))
    table, _ = run(["random", "p2c", "round-robin"], parts(), RunRecord(file))
    assert table == run(["random", "p2c", "round-robin"], parts(), None)[0]
    assert len(file.read_bytes().splitlines()) == 3


def test_other_parts_models_and_code_are_something_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.jsonl"
    run(["p2c"], parts(), RunRecord(file))
    scenario = load_scenario("tiny")
    assert RunRecord(file).known("p2c", scenario, PROTOCOL)
    assert not RunRecord(file).known("p2c", scenario, replace(PROTOCOL, requests=31))
    assert not RunRecord(file).known("p2c", replace(scenario, prefix_cache=False), PROTOCOL)
    assert not RunRecord(file, "20260101").known("p2c", scenario, PROTOCOL)
    monkeypatch.setattr("steersman.agents.evaluate.record._state", lambda: "edited")
    assert not RunRecord(file).known("p2c", scenario, PROTOCOL)


def test_a_line_that_was_cut_short_is_run_again(tmp_path: Path) -> None:
    file = tmp_path / "runs.jsonl"
    first, _ = run(["random", "p2c"], parts(), RunRecord(file))
    file.write_bytes(file.read_bytes()[:-20])
    assert run(["random", "p2c"], parts(), RunRecord(file))[0] == first
    assert run(["random", "p2c"], parts(), RunRecord(file))[1] == 8


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "missing" / "runs.jsonl"):
        with pytest.raises(ConfigError, match="give a file of yours, in a folder that exists"):
            RunRecord(path)
    record = RunRecord(tmp_path / "runs.jsonl")
    (tmp_path / "runs.jsonl").unlink()
    (tmp_path / "runs.jsonl").mkdir()
    with pytest.raises(ConfigError, match=r"runs\.jsonl'.*make room for it"):
        run(["p2c"], parts(), record)


@pytest.mark.parametrize("name", ["code.py", "constants.yaml", "deep/er/trace.parquet"])
def test_any_edit_changes_the_hash(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("one")
    (tmp_path / "policy.onnx").write_text("one")
    before = contents_hash([tmp_path])
    (tmp_path / "policy.onnx").write_text("other")
    assert contents_hash([tmp_path]) == before, "models have versions"
    path.write_text("other")
    assert contents_hash([tmp_path]) != before
