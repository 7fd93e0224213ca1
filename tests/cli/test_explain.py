"""`steersman explain`, over the log of a router that has served."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steersman.cli import app
from steersman.predictors.features import REPLICA_FEATURES
from tests.serving.backends import events, stream
from tests.serving.harness import chat, rig
from tests.support.commands import mistake

RUNNER = CliRunner()


async def served(directory: Path, replicas: int = 2) -> list[str]:
    """Two requests through a router with so many backends; their ids."""
    answers = [stream([b"".join(events(6))]) for _ in range(replicas)]
    sections = {"outcome_log": {"directory": str(directory)}, "policy": {"name": "marginal-cost"}}
    async with rig(*answers, **sections) as (router, _):
        came = [await router.post(chat(stream=True)) for _ in range(2)]
    return [told["x-steersman-decision-id"] for _, _, told in came]


async def test_a_request_is_explained_by_its_id(tmp_path: Path) -> None:
    first, second = await served(tmp_path)
    done = RUNNER.invoke(app, ["explain", first, "--log", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert f"request {first}" in done.stdout
    assert "marginal-cost chose" in done.stdout
    assert "What came: first token after" in done.stdout
    (segment,) = tmp_path.iterdir()
    newest = RUNNER.invoke(app, ["explain", "--log", str(segment), "--json"])
    told = json.loads(newest.stdout)
    assert told["request_id"] == second
    assert {each["replica"] for each in told["candidates"]} == {"b0", "b1"}
    assert tuple(told["candidates"][0]["features"]) == REPLICA_FEATURES
    assert told["reasons"]


async def test_few_rows_still_show_the_chosen(tmp_path: Path) -> None:
    first, _ = await served(tmp_path, replicas=4)
    done = RUNNER.invoke(app, ["explain", first, "--log", str(tmp_path), "--candidates", "1"])
    rows = [line for line in done.stdout.splitlines() if re.match(r" *b\d ", line)]
    assert 1 <= len(rows) <= 2
    assert rows[-1].rstrip().endswith("chosen")
    assert f"Not shown: {4 - len(rows)}." in done.stdout


async def test_an_unknown_request_is_told_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    await served(tmp_path)
    line = mistake(("explain", "req-none", "--log", str(tmp_path)), monkeypatch, capsys)
    assert "no record of request 'req-none'" in line
    nowhere = mistake(("explain", "--log", str(tmp_path / "none")), monkeypatch, capsys)
    assert "cannot be read" in nowhere
