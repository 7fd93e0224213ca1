"""Closed segments are compacted beside the router, and whatever the process does costs nothing else."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from steersman.serving.compaction import CHECK_S, MOST_PAUSE_S, PATIENCE_S, CompactionLoop
from steersman.serving.config import OutcomeLogSettings
from steersman.serving.metrics import RouterMetrics
from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord, read_outcomes, segments
from tests.serving.backends import completion, whole
from tests.serving.harness import eventually, rig


def closed_segment(directory: Path, count: int = 5) -> list[str]:
    with OutcomeLogWriter(directory) as writer:
        for i in range(count):
            writer.append(OutcomeRecord(f"r{i}", float(i), i))
    return [f"r{i}" for i in range(count)]


def loop_with(directory: Path, program: str | None = None) -> tuple[CompactionLoop, RouterMetrics]:
    metrics = RouterMetrics()
    settings = OutcomeLogSettings(directory=str(directory))
    command = None if program is None else [sys.executable, "-c", program]
    return CompactionLoop(settings, metrics, command), metrics


def shown(metrics: RouterMetrics, name: str) -> float:
    lines = [line for line in metrics.page().decode().splitlines() if line.startswith(f"{name} ")]
    return float(lines[0].rpartition(" ")[2]) if lines else 0.0


async def ended(loop: CompactionLoop) -> None:
    assert loop.helper is not None
    await asyncio.to_thread(loop.helper.process.wait)


async def test_a_router_compacts_what_the_one_before_it_has_written(tmp_path: Path) -> None:
    ids = closed_segment(tmp_path)
    async with rig(whole(completion()), outcome_log={"directory": str(tmp_path)}) as (router, _):
        await eventually(lambda: segments(tmp_path)[0].suffix == ".parquet", within_s=60)
        loop = router.parts.compaction
        assert loop is not None
        await eventually(lambda: loop.helper is None, within_s=60)
        assert await router.metric('steersman_outcome_log_compactions_total{result="done"}') == 1.0
        assert await router.metric("steersman_outcome_log_compacted_records_total") == len(ids)
        status, _, _ = await router.post()
        assert status == 200
    read = [record.request_id for record in read_outcomes(tmp_path)]
    assert read[: len(ids)] == ids
    assert len(read) == len(ids) + 1


async def test_without_closed_segments_nothing_is_started(tmp_path: Path) -> None:
    loop, metrics = loop_with(tmp_path)
    with OutcomeLogWriter(tmp_path) as writer:
        writer.append(OutcomeRecord("a", 0.0, 1))
        writer.flush()
        assert await loop.step(0.0) == CHECK_S
        assert loop.helper is None
        assert shown(metrics, "steersman_outcome_log_bytes") > 0


@pytest.mark.parametrize("program", ["raise SystemExit(3)", "print('no report')", "print('[]')"])
async def test_failures_are_counted_and_tried_again_ever_later(tmp_path: Path, program: str) -> None:
    closed_segment(tmp_path)
    loop, metrics = loop_with(tmp_path, program)
    pauses = []
    for now_s in range(3):
        await loop.step(float(now_s))
        await ended(loop)
        pauses.append(await loop.step(float(now_s)))
    assert pauses == [2 * CHECK_S, 4 * CHECK_S, 8 * CHECK_S]
    assert max(pauses) < MOST_PAUSE_S
    failed = 'steersman_outcome_log_compactions_total{result="failed"}'
    assert shown(metrics, failed) == 3.0


async def test_a_process_that_takes_too_long_is_killed(tmp_path: Path) -> None:
    closed_segment(tmp_path)
    loop, _ = loop_with(tmp_path, "import time; time.sleep(600)")
    await loop.step(0.0)
    assert loop.helper is not None
    process = loop.helper.process
    await loop.step(PATIENCE_S - 1.0)
    assert process.poll() is None
    assert await loop.step(PATIENCE_S + 1.0) == 2 * CHECK_S
    assert process.poll() is not None
    assert loop.helper is None


async def test_it_ends_with_the_router(tmp_path: Path) -> None:
    closed_segment(tmp_path)
    loop, _ = loop_with(tmp_path, "import time; time.sleep(600)")
    await loop.step(0.0)
    assert loop.helper is not None
    process = loop.helper.process
    loop.close()
    assert process.poll() is not None


async def test_a_command_that_does_not_exist_is_a_failure_like_others(tmp_path: Path) -> None:
    closed_segment(tmp_path)
    metrics = RouterMetrics()
    settings = OutcomeLogSettings(directory=str(tmp_path))
    loop = CompactionLoop(settings, metrics, [str(tmp_path / "nothing")])
    assert await loop.step(0.0) == 2 * CHECK_S
