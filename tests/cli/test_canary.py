from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from steersman.cli import app
from steersman.serving.canary import rules
from steersman.serving.canary.settings import CanarySettings
from steersman.serving.canary.state import CanaryState
from steersman.serving.canary.store import FileStore
from tests.support.commands import mistake
from tests.support.processes import free_port

RUNNER = CliRunner()


@pytest.fixture
def config(tmp_path: Path) -> str:
    values = {
        "backends": [{"url": "http://127.0.0.1:1"}],
        "canary": {
            "enabled": True,
            "challenger": {"policy": {"name": "p2c"}},
            "state_file": str(tmp_path / "canary.json"),
        },
    }
    (tmp_path / "router.yaml").write_text(yaml.safe_dump(values))
    return str(tmp_path / "router.yaml")


def run(*arguments: str) -> str:
    done = RUNNER.invoke(app, ["canary", *arguments])
    assert done.exit_code == 0, (done.output, done.exception)
    return done.stdout


def test_a_canary_by_hand(config: str, tmp_path: Path) -> None:
    assert "idle: none, 0 % of the traffic" in run("status", "--config", config)
    assert "a start was asked for by" in run("start", "--config", config)

    def begin(state: CanaryState) -> None:
        """As a router does."""
        assert state.start_asked_by
        rules.start(state, CanarySettings(), "b2", "b1", time.time())

    FileStore(tmp_path / "canary.json").update_now(begin)
    shown = run("status", "--config", config)
    assert "running: b2, 5 % of the traffic" in shown
    assert "stage 1 of 5 %, 20 %, 50 %, 100 %" in shown
    assert "against b1" in shown
    told = json.loads(run("promote", "--config", config, "--reason", "in a hurry", "--json"))
    assert (told["phase"], told["share"]) == ("promoted", 1.0)
    shown = run("abort", "--config", config, "--reason", "not so fast")
    assert "aborted: b2, 0 % of the traffic" in shown
    assert "not so fast" in shown


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("abort",), "no canary is running"),
        (("promote", "--reason", "x"), "no canary is running"),
    ],
)
def test_there_has_to_be_one(
    arguments: tuple[str, ...],
    said: str,
    config: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said in mistake(("canary", *arguments, "--config", config), monkeypatch, capsys)


def test_mistakes_are_one_line(
    config: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    values = yaml.safe_load(Path(config).read_text())
    without = tmp_path / "without.yaml"
    without.write_text(yaml.safe_dump({"backends": values["backends"]}))
    said = mistake(("canary", "status", "--config", str(without)), monkeypatch, capsys)
    assert "canary.enabled is false" in said
    nobody = values | {"shared": {"url": f"redis://127.0.0.1:{free_port()}"}}
    without.write_text(yaml.safe_dump(nobody))
    said = mistake(("canary", "status", "--config", str(without)), monkeypatch, capsys)
    assert "the shared server does not answer; nothing was changed" in said
