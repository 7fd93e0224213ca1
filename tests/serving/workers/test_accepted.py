"""Workers that start later have the configuration that the others took up."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from steersman.serving.config import RouterSettings
from steersman.serving.workers.accepted import Accepted
from steersman.traces.settings import parse_settings, read_yaml

EXAMPLES = sorted((Path(__file__).parents[3] / "configs/serving").glob("*.yaml"))


def on_port(port: int) -> RouterSettings:
    values = {"port": port, "backends": [{"url": "http://a"}]}
    return parse_settings(values, RouterSettings, source="test")


@pytest.mark.parametrize("file", EXAMPLES, ids=lambda file: file.stem)
def test_settings_come_back_as_they_were_given(file: Path) -> None:
    settings = parse_settings(read_yaml(file), RouterSettings, source=str(file))
    accepted = Accepted(2)
    accepted.give(1, settings)
    assert accepted.newest() == settings


def test_the_newest_counts_and_stays_when_others_leave() -> None:
    clock = count(1)
    accepted = Accepted(3, lambda: float(next(clock)))
    assert accepted.newest() is None
    for seat, port in ((2, 1), (0, 2), (1, 3)):
        accepted.give(seat, on_port(port))
    accepted.give(0, on_port(4))
    accepted.departed(1)
    newest = accepted.newest()
    assert newest is not None
    assert newest.port == 4
