from __future__ import annotations

from steersman.agents.retrain.plan import RetrainResult
from steersman.agents.retrain.schedule import Schedule
from steersman.traces.errors import SteersmanError, TraceError


def test_it_runs_at_once_and_then_every_so_often_whatever_comes_of_it() -> None:
    runs: list[int] = []
    told: list[SteersmanError] = []

    def run() -> RetrainResult:
        runs.append(1)
        raise TraceError("too little")

    def made(result: RetrainResult) -> None:
        raise AssertionError(result)

    schedule = Schedule(100.0, run, on_result=made, on_refusal=told.append)
    assert schedule.step(1000.0) == 0.0
    assert (len(runs), len(told)) == (1, 1)
    assert schedule.step(1040.0) == 5.0
    assert schedule.step(1098.0) == 2.0
    assert len(runs) == 1
    assert schedule.step(1100.0) == 0.0
    assert len(runs) == 2
