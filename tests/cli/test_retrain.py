"""`steersman retrain`: mistakes, and that its settings are those that are written down."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from steersman.agents.retrain.settings import RetrainSettings, load_retrain_settings
from steersman.traces.settings import CONFIG_ROOT
from tests.support.commands import mistake


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "Missing option '--log'"),
        (("--log", "LOG"), "no outcome log segments"),
        (("--log", "LOG", "--config", "none.yaml"), "none.yaml: no such file"),
        (("--log", "LOG", "--mlruns", "FILE"), "FILE: cannot be written"),
        (("--log", "LOG", "--budget-s", "0"), "--budget-s"),
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
    (tmp_path / "FILE").write_text("")
    assert said in mistake(("retrain", *arguments), monkeypatch, capsys)


def test_the_file_lists_every_key_with_its_default() -> None:
    written = load_retrain_settings("default")
    usual = RetrainSettings()
    assert written.model_dump(exclude={"policy"}) == usual.model_dump(exclude={"policy"})
    named = yaml.safe_load((CONFIG_ROOT / "retraining" / "default.yaml").read_text())
    assert set(named) == set(RetrainSettings.model_fields)
