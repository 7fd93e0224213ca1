from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steersman.agents.evidence import Evidence
from steersman.agents.registry import Registry, RunRecord
from steersman.cli import app
from steersman.predictors.bundle import load_bundle, write_bundle
from tests.parity.test_policy import GRAPH
from tests.support.commands import mistake

RUNNER = CliRunner()


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """`registry watch` sets the process's up."""
    root, ours = logging.getLogger(), logging.getLogger("steersman")
    handlers, level = root.handlers[:], ours.level
    yield
    root.handlers[:] = handlers
    ours.setLevel(level)


def run(*arguments: str) -> str:
    done = RUNNER.invoke(app, [*arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_the_way_of_two_versions(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    made_store: Callable[[Path], Path],
) -> None:
    store = str(made_store(tmp_path / "mlruns"))
    registry = Registry(store)
    for name in ("b1", "b2"):
        created = datetime(2026, 1, 1, tzinfo=UTC)
        bundle = write_bundle(
            tmp_path / name,
            {"policy.onnx": GRAPH, "name.txt": name.encode()},
            version=name,
            code_version="0",
            created=created,
        )
        run_record = RunRecord({}, {}, tags={"parent": "b0"})
        version = registry.log_training_run(bundle, run_record, run_name=name).version
        made = Evidence("evaluation", name, "" if name == "b1" else "b1", "better", ("J",), {}, 1.0)
        registry.record_evidence(version, made)
    gates = tmp_path / "gates.yaml"
    gates.write_text("max_age_days: 100000\n")

    assert "passed  evaluation: better: J" in run(
        "promote", "1", "--mlruns", store, "--gates", str(gates)
    )
    said = mistake(("promote", "--mlruns", store, "--gates", str(gates)), monkeypatch, capsys)
    assert "may not become champion: shadow or canary: shadow: there is none; canary" in said
    told = json.loads(run("promote", "--mlruns", store, "--override", "for this test", "--json"))
    assert (told["bundle"], told["override"][0]) == ("b2", "for this test")

    shown = run("models", "--mlruns", store)
    assert "version 2 (challenger, champion)  bundle b2" in shown
    assert "parent: b0" in shown
    assert "champion 2 after 1" in shown
    assert "override: for this test" in shown
    listed = json.loads(run("models", "--mlruns", store, "--json"))
    assert [model["bundle_version"] for model in listed["models"]] == ["b2", "b1"]
    assert listed["changes"][-1]["made_unix_s"] == pytest.approx(time.time(), abs=600.0)

    assert "champion: bundle b1" in run("rollback", "--mlruns", store, "--reason", "pager")
    run("registry", "watch", "--mlruns", store, "--once")
    assert load_bundle(registry.champion_directory).version == "b1"
    challenger = load_bundle(tmp_path / "mlruns" / "served" / "challenger")
    assert challenger.version == "b2"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("models",), "no MLflow store here"),
        (("promote",), "no MLflow store here"),
        (("rollback",), "no champion before this one"),
        (("promote", "--override", "ok"), "is no reason"),
        (("promote", "--gates", "nowhere.yaml"), "nowhere.yaml: no such file"),
    ],
)
def test_mistakes_are_one_line(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    given = (*arguments, "--mlruns", str(tmp_path / "mlruns"))
    assert said in mistake(given, monkeypatch, capsys)
    assert not (tmp_path / "mlruns").exists()
