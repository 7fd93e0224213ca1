"""When a refit is due, and what becomes of its worker; the workers here are small real processes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import orjson
import pytest

from steersman.predictors.drift import REFERENCE_OUTCOMES
from steersman.serving.config import RouterSettings
from steersman.serving.metrics import RouterMetrics
from steersman.serving.models import ServedModels
from steersman.serving.online import OnlineErrors
from steersman.serving.refit import RefitLoop, refit_command
from steersman.traces.errors import ConfigError
from steersman.traces.settings import parse_settings

KEY = ("m", "a100-llama-3.1-8b", "ttft")
REPLACED = {"replaced": ["latency"], "reasons": {"latency": "better"}}
KEPT = {"replaced": [], "reasons": {"latency": "not better", "length": "not better"}}


def settings(**refit: object) -> RouterSettings:
    values = {
        "backends": [{"url": "http://a", "models": ["m"]}],
        "bundle": {"directory": "bundle"},
        "outcome_log": {"directory": "log"},
        "refit": {"enabled": True, "min_outcomes": 200, "min_interval_s": 100.0} | refit,
    }
    return parse_settings(values, RouterSettings, source="test")


class Bench:
    """A loop with a worker program of the test's."""

    def __init__(self, program: str, **refit: object) -> None:
        parsed = settings(**refit)
        self.metrics = RouterMetrics()
        self.errors = OnlineErrors(self.metrics)
        models = ServedModels(parsed.policy, parsed.guard, self.metrics, lambda: 0.0)
        command = [sys.executable, "-c", program]
        self.loop = RefitLoop(parsed, self.errors, models, self.metrics, command)

    def serve(self, actual: float, times: int) -> None:
        for _ in range(times):
            self.errors.outcomes += 1
            self.errors.compare(KEY, actual, 0.1, 0.2)

    def drift(self) -> None:
        self.serve(0.1, REFERENCE_OUTCOMES)
        self.serve(0.3, 100)
        assert self.errors.drifted

    def refits(self, result: str, reason: str) -> float:
        line = f'steersman_refits_total{{reason="{reason}",result="{result}"}} '
        rows = [row for row in self.metrics.page().decode().splitlines() if row.startswith(line)]
        return float(rows[0].rpartition(" ")[2]) if rows else 0.0

    async def run(self, now_s: float) -> None:
        """One refit, from the step that starts it to the step that reaps it."""
        await self.loop.step(now_s)
        worker = self.loop.worker
        assert worker is not None, "it was not due"
        await asyncio.to_thread(worker.process.wait)
        await self.loop.step(now_s + 1.0)
        assert self.loop.worker is None


def answering(report: object) -> str:
    return f"print({orjson.dumps(report).decode()!r})"


async def test_it_waits_for_outcomes_after_the_drift_and_then_for_twice_as_many() -> None:
    bench = Bench(answering(REPLACED), min_interval_s=0.0)
    await bench.loop.step(0.0)
    bench.drift()
    await bench.loop.step(1.0)
    bench.serve(0.3, 199)
    await bench.loop.step(2.0)
    assert bench.loop.worker is None
    bench.serve(0.3, 1)
    await bench.run(3.0)
    assert bench.refits("replaced", "latency") == 1.0
    assert bench.errors.drifted == [], "the next errors are the reference"
    bench.serve(0.3, 199)
    await bench.loop.step(5.0)
    assert bench.loop.worker is None
    bench.serve(0.3, 1)
    await bench.run(6.0)
    assert bench.refits("replaced", "latency") == 2.0


async def test_without_drift_nothing_happens() -> None:
    bench = Bench(answering(REPLACED), min_interval_s=0.0)
    for now_s in range(20):
        bench.serve(0.1, 300)
        await bench.loop.step(float(now_s))
    assert bench.loop.worker is None


async def test_it_can_also_be_regular() -> None:
    bench = Bench(answering(KEPT), interval_s=1000.0)
    await bench.loop.step(0.0)
    bench.serve(0.1, 300)
    await bench.loop.step(999.0)
    assert bench.loop.worker is None
    await bench.run(1000.0)
    assert bench.refits("kept", "not_better") == 1.0
    bench.serve(0.1, 300)
    await bench.loop.step(1900.0)
    assert bench.loop.worker is None
    await bench.run(2001.0)


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        ("import sys; sys.exit('steersman: error: no log')", "error"),
        ("import os; os.kill(os.getpid(), 9)", "killed"),
        ("print('what?')", "bad_answer"),
        ("print('[1]')", "bad_answer"),
        ('print(\'{"replaced": 3, "reasons": {}}\')', "bad_answer"),
    ],
)
async def test_a_worker_that_fails_is_counted_and_tried_again_later(program: str, reason: str) -> None:
    bench = Bench(program)
    bench.drift()
    await bench.loop.step(0.0)
    bench.serve(0.3, 200)
    await bench.run(1.0)
    assert bench.refits("failed", reason) == 1.0
    await bench.loop.step(100.0)
    assert bench.loop.worker is None, "not before the pause is over"
    await bench.run(102.0)
    await bench.loop.step(102.0 + 101.0 + 50.0)
    assert bench.loop.worker is None, "the pause doubles"
    await bench.run(102.0 + 203.0)
    assert bench.refits("failed", reason) == 3.0


async def test_a_worker_that_hangs_is_killed() -> None:
    bench = Bench("import time; time.sleep(600)", timeout_s=30.0)
    bench.drift()
    await bench.loop.step(0.0)
    bench.serve(0.3, 200)
    await bench.loop.step(1.0)
    worker = bench.loop.worker
    assert worker is not None
    await bench.loop.step(30.0)
    assert worker.process.poll() is None
    await bench.loop.step(32.0)
    assert worker.process.poll() == -9
    assert bench.refits("failed", "timeout") == 1.0


async def test_the_worker_ends_with_the_router() -> None:
    bench = Bench("import time; time.sleep(600)")
    bench.drift()
    await bench.loop.step(0.0)
    bench.serve(0.3, 200)
    await bench.loop.step(1.0)
    worker = bench.loop.worker
    assert worker is not None
    bench.loop.close()
    assert worker.process.poll() == -9


async def test_a_worker_that_cannot_be_started_is_counted(tmp_path: Path) -> None:
    bench = Bench("")
    bench.loop.command[0] = str(tmp_path / "no-python")
    bench.drift()
    await bench.loop.step(0.0)
    bench.serve(0.3, 200)
    await bench.loop.step(1.0)
    assert bench.refits("failed", "not_started") == 1.0


def test_the_command_is_one_that_the_tool_knows(tmp_path: Path) -> None:
    command = refit_command(settings(nice=3, memory_gib=1.5, window_outcomes=700))
    assert command[1:5] == ["-m", "steersman", "train", "refit"]
    for option, value in (("--nice", "3"), ("--memory-gib", "1.5"), ("--window", "700")):
        assert command[command.index(option) + 1] == value


@pytest.mark.parametrize("section", ["bundle", "outcome_log"])
def test_a_refit_needs_a_log_and_a_bundle(section: str) -> None:
    values = settings().model_dump() | {section: {}}
    with pytest.raises(ConfigError, match=f"refit.enabled needs {section}.directory"):
        parse_settings(values, RouterSettings, source="test")
