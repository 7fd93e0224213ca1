from __future__ import annotations

from pathlib import Path

import numpy as np

from steersman.agents.report.page import render, write
from steersman.serving.rehearsal.report import Rehearsal, Training, build
from tests.serving.rehearsal.test_comparison import result
from tests.support.browser import measure


def rehearsal(*, failed: bool = False) -> Rehearsal:
    rng = np.random.default_rng(0)
    old = rng.lognormal(0, 0.5, 50).tolist()
    new = [np.nan] * 50 if failed else [value * 0.8 for value in old]
    replicas = ["h100", "a100"] * 25
    return Rehearsal(
        cluster=[("h100", "h100-tp4-llama-3.1-70b", "15 ms")],
        load=["50 requests."],
        results={"p2c": result(old, replicas), "learned": result(new, replicas)},
        training=Training(
            summary=["Trained on a trace."],
            predictors=[("output length", "0.41 of the constant's pinball loss")],
            curve=(np.arange(5.0), np.linspace(1.1, 0.97, 5)),
            ratios=[("against p2c", 0.6, 0.55, 0.65)],
        ),
        places=[("outcome log", "logs/")],
        next_steps=["steersman version"],
    )


def test_the_report_shows_every_part() -> None:
    html = render(build(rehearsal()))
    for text in (
        "p2c against learned",
        "-20 %",
        "share of h100",
        "TTFT p99",
        "0.41 of the constant",
        "logs/",
    ):
        assert text in html
    assert html.count("<svg") == 6


def test_a_replay_in_which_everything_failed_is_still_reported() -> None:
    html = render(build(rehearsal(failed=True)))
    assert "n/a" in html
    assert "not answered well" in html


def test_chromium_opens_it(tmp_path: Path, chromium: str) -> None:
    path = tmp_path / "report.html"
    write(build(rehearsal()), path)
    seen = measure(chromium, path, 800)
    assert seen["title"] == "Rehearsal: p2c against learned"
    assert seen["figures"] == 6
    assert seen["scroll_width"] <= seen["client_width"]
