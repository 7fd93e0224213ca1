"""`steersman train refit`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steersman.agents.refit.refit import previous_of
from steersman.cli.train import app
from tests.serving.graphs import policy_bundle
from tests.support.commands import mistake

RUNNER = CliRunner()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "--log: not given"),
        (("--log", "LOG"), "no outcome log segments"),
        (("--rollback",), "no bundle here"),
    ],
)
def test_mistakes_are_told_in_one_line(
    arguments: tuple[str, ...],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "LOG").mkdir()
    command = ("train", "refit", "--bundle", str(tmp_path / "champion"), *arguments)
    assert said in mistake(command, monkeypatch, capsys)


def test_a_rollback_serves_the_previous_bundle(tmp_path: Path) -> None:
    bundle = tmp_path / "champion"
    policy_bundle(bundle, "v2")
    policy_bundle(previous_of(bundle), "v1")
    done = RUNNER.invoke(app, ["refit", "--bundle", str(bundle), "--rollback", "--json"])
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {"version": "v1"}
