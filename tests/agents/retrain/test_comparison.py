"""What the runs allow to be said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from steersman.agents.evaluate.table import Cell, EvaluationTable
from steersman.agents.evidence import Evidence
from steersman.agents.offpolicy.replay import CHALLENGER, CHAMPION
from steersman.agents.retrain.comparison import judge
from steersman.agents.retrain.settings import ComparisonSettings
from steersman.env.calibrate import ErrorLine
from tests.agents.evaluate.tables import table_of

FAITHFUL = tuple(ErrorLine(name, 1.0, math.nan, 0.05) for name in ("ttft_p50", "e2e_p50"))
UNLIKE = (ErrorLine("ttft_p50", 1.0, math.nan, 0.8), FAITHFUL[1])


def runs(ratio: float, seeds: int) -> EvaluationTable:
    noise = [1.0 + 0.01 * (seed % 2) for seed in range(seeds)]
    costs = {CHAMPION: [2.0] * seeds, CHALLENGER: [2.0 * ratio * each for each in noise]}
    return table_of({name: {Cell("log", 1.0): values} for name, values in costs.items()})


def verdict(
    log: float,
    scenarios: float | None = 1.0,
    fidelity: tuple[ErrorLine, ...] = FAITHFUL,
    streams: int = 5,
) -> Evidence:
    return judge(
        runs(log, streams),
        None if scenarios is None else runs(scenarios, 5),
        fidelity,
        ComparisonSettings(streams=streams),
        champion="old",
        challenger="new",
        now_unix_s=1.0,
    )


@pytest.mark.parametrize(
    ("log", "scenarios", "said"),
    [
        (0.8, 1.0, "better"),
        (0.8, None, "better"),
        (1.3, 0.8, "worse"),
        (0.8, 1.2, "worse"),
        (0.8, 1.03, "better"),
    ],
)
def test_the_log_decides_and_the_scenarios_forbid(
    log: float, scenarios: float | None, said: str
) -> None:
    found = verdict(log, scenarios)
    assert found.verdict == said
    assert (found.champion, found.challenger, found.kind) == ("old", "new", "evaluation")


def test_a_model_unlike_the_cluster_shows_nothing() -> None:
    found = verdict(0.8, fidelity=UNLIKE)
    assert found.verdict == "insufficient"
    assert "ttft_p50 +80%" in found.reasons[-1]
    assert verdict(1.3, fidelity=UNLIKE).verdict == "worse", "harm is believed at once"


def test_few_streams_claim_nothing() -> None:
    assert verdict(0.8, streams=3).verdict == "insufficient"


def test_a_challenger_that_the_guard_overrules_shows_nothing() -> None:
    table = runs(0.8, 5)
    overruled = EvaluationTable(
        tuple(
            replace(run, fallbacks={"latched": 1}) if run.policy == CHALLENGER else run
            for run in table.runs
        )
    )
    settings = ComparisonSettings(streams=5)
    found = judge(overruled, None, FAITHFUL, settings, champion="old", challenger="new", now_unix_s=1.0)
    assert found.verdict == "insufficient"
    assert "the guard decided in its place in 100% of all cases" in found.reasons
