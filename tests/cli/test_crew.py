"""Who works for a command."""

from __future__ import annotations

import pytest

from steersman.cli.crew import crew
from tests.support.commands import mistake


def test_without_a_cluster_as_many_work_as_were_asked_for() -> None:
    with crew(None, 3) as workers:
        assert workers == 3


def test_a_cluster_that_is_not_there_is_told_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ("evaluate", "tune", "--policy", "p2c", "--scenario", "tiny", "--ray", "nowhere:1")
    assert "--ray nowhere:1: no Ray cluster can be joined there" in mistake(command, monkeypatch, capsys)
