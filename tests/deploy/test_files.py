"""What systemd and the image are told to run are commands there are."""

from __future__ import annotations

import configparser
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from steersman import __version__
from steersman.cli import app
from steersman.serving.config import TimeoutSettings

ROOT = Path(__file__).parents[2]


def unit() -> configparser.SectionProxy:
    parsed = configparser.ConfigParser(strict=False, interpolation=None)
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read(ROOT / "deploy" / "steersman.service")
    return parsed["Service"]


def commands() -> list[list[str]]:
    dockerfile = (ROOT / "Dockerfile").read_text()
    image = re.search(r"^CMD \[(.*)\]$", dockerfile, re.MULTILINE)
    assert image is not None
    run = ["steersman", *(word.strip(' "') for word in image[1].split(","))]
    return [shlex.split(unit()[key]) for key in ("ExecStart", "ExecStartPre")] + [run]


@pytest.mark.parametrize("command", commands(), ids=range(3))
def test_commands_and_options_exist(command: list[str]) -> None:
    assert Path(command[0]).name == "steersman"
    told = CliRunner().invoke(app, [command[1], "--help"], env={"COLUMNS": "200"}).output
    for option in (word for word in command if word.startswith("--")):
        assert option in told


def test_systemd_waits_for_the_drain() -> None:
    assert int(unit()["TimeoutStopSec"]) > TimeoutSettings().drain_s + 10


def test_versions_are_this_one() -> None:
    for path in ("Dockerfile", "deploy/kubernetes/steersman.yaml"):
        tags = re.findall(r"steersman:(\d+\.\d+\.\d+)", (ROOT / path).read_text())
        assert tags
        assert set(tags) == {__version__}
