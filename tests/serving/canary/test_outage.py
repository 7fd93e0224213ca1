from __future__ import annotations

import math

import numpy as np

from steersman.serving.canary.outage import Outage
from steersman.serving.canary.settings import OutageSettings
from steersman.serving.canary.tally import CHALLENGER, CHAMPION

NAN = math.nan


def feed(outage: Outage, arm: str, failed: list[bool], *, gap_s: float = 0.1, usual: float = NAN) -> str:
    said = ""
    for i, bad in enumerate(failed):
        said = outage.observe(arm, gap_s * i, failed=bad, usual=usual) or said
    return said


def test_a_challenger_that_fails_outright_is_stopped_with_its_tenth_request() -> None:
    outage = Outage(OutageSettings())
    feed(outage, CHAMPION, [False] * 100)
    assert feed(outage, CHALLENGER, [True] * 9) == ""
    assert "10 of its last 10 requests failed, 0.0 % of the champion's" in feed(
        outage, CHALLENGER, [True]
    )


def test_one_in_ten_that_fails_is_no_outage() -> None:
    outage = Outage(OutageSettings())
    assert feed(outage, CHALLENGER, ([False] * 9 + [True]) * 20) == ""


def test_where_the_champion_fails_too_it_is_not_the_challenger() -> None:
    outage = Outage(OutageSettings())
    feed(outage, CHAMPION, [True, False] * 50)
    assert feed(outage, CHALLENGER, [True] * 10) == ""
    outage = Outage(OutageSettings())
    assert feed(outage, CHALLENGER, [True] * 10, usual=0.4) == "", "as it was before"
    assert feed(outage, CHALLENGER, [True] * 10, usual=0.2) != ""


def test_what_happened_long_ago_is_no_outage() -> None:
    assert feed(Outage(OutageSettings()), CHALLENGER, [True] * 10, gap_s=30.0) == ""


def test_chance_does_not_trip_it() -> None:
    rng = np.random.default_rng(0)
    outage = Outage(OutageSettings())
    feed(outage, CHAMPION, list(rng.random(100) < 0.02))
    assert feed(outage, CHALLENGER, list(rng.random(50_000) < 0.02)) == ""
