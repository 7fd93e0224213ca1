"""The chaos run: short, with its books checked, and able to tell when they do not balance."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from steersman.traces.outcome_log import OutcomeLogWriter, OutcomeRecord
from steersman.traces.schema import Status

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
SCRIPT = BENCHMARKS / "chaos.py"
sys.path.insert(0, str(BENCHMARKS))

from chaos import judge, total  # noqa: E402
from chaos_books import Clients, Ending, Entry  # noqa: E402
from chaos_incidents import Plan, Span  # noqa: E402

PAGE = 'steersman_requests_total{model="m",status="ok"} 2.0\nsteersman_requests_total{x="y"} 1.0\n'


PLAN = Plan({}, (0.0, 0.0), (0.0, 0.0), 0)
DROPPED = "steersman_outcome_log_dropped_total 1.0\n"


def entry(number: int, ending: Ending) -> Entry:
    return Entry(f"chaos-{number}", 64, 8, True, None, ending=ending)


def figures(rows: list[dict[str, Any]]) -> dict[str, int]:
    return {row["name"].removeprefix("chaos."): row["value"] for row in rows}


def write(directory: Path, *records: tuple[str, Status]) -> Path:
    with OutcomeLogWriter(directory) as log:
        for name, status in records:
            log.append(OutcomeRecord("r", 0.0, 1, session_id=name, status=status))
    return directory


def test_books_that_balance(tmp_path: Path) -> None:
    log = write(tmp_path, ("chaos-0", Status.OK), ("chaos-1", Status.FAILED), ("chaos-2", Status.OK))
    entries = [
        entry(0, Ending.OK),
        entry(1, Ending.BROKEN),
        entry(2, Ending.LEFT),
        entry(3, Ending.LEFT),
    ]
    found = figures(judge(entries, log, PAGE, PLAN))
    assert found["unaccounted"] == found["lost_before_first_byte"] == found["wrong_bytes"] == 0
    assert (found["requests"], found["broken_after_first_byte"], found["left"]) == (4, 1, 2)


@pytest.mark.parametrize(
    ("records", "endings", "page", "unaccounted"),
    [
        ([("chaos-0", Status.OK)] * 3, [Ending.OK], PAGE, 1),
        ([("chaos-0", Status.FAILED), ("x", Status.OK), ("y", Status.OK)], [Ending.OK], PAGE, 3),
        ([("chaos-1", Status.OK), ("chaos-2", Status.OK)], [Ending.OK] * 3, PAGE, 2),
        ([("chaos-1", Status.OK), ("chaos-2", Status.OK)], [Ending.OK] * 3, PAGE + DROPPED, 0),
        ([("chaos-0", Status.OK), ("chaos-1", Status.OK)], [Ending.BROKEN] * 2, PAGE + DROPPED, 2),
    ],
    ids=["twice", "otherwise-and-strangers", "missing-and-counters-off", "dropped", "otherwise"],
)
def test_books_that_do_not(
    records: list[tuple[str, Status]],
    endings: list[Ending],
    page: str,
    unaccounted: int,
    tmp_path: Path,
) -> None:
    entries = [entry(i, ending) for i, ending in enumerate(endings)]
    assert figures(judge(entries, write(tmp_path, *records), page, PLAN))["unaccounted"] == unaccounted


def test_what_went_on_when_something_is_missing_is_told() -> None:
    spans = [Span("killed", 1, 3.0, 5.0), Span("disk-full", 2, 6.0, 8.0)]
    plan = Plan({}, (0.0, 0.0), (0.0, 0.0), 0, began_s=2.0, spans=spans)
    assert plan.told(4.0, 5.5) == "from 2.0 to 3.5 s, with killed r1"
    assert plan.told(5.2, 5.5) == "from 3.2 to 3.5 s, with nothing"


def test_counters_are_summed_over_labels() -> None:
    assert total(PAGE, "steersman_requests_total") == 3.0
    assert total("steersman_retries_denied_total 4.0\n", "steersman_retries_denied_total") == 4.0


@pytest.mark.parametrize(
    ("body", "ending"),
    [
        ('{"choices":[{"message":{"content":"%s"}}]}', Ending.OK),
        ('{"choices":[{"message":{"content":"%s more"}}]}', Ending.WRONG),
        ("<html>", Ending.WRONG),
    ],
)
def test_every_byte_of_text_is_checked(body: str, ending: Ending) -> None:
    checked = entry(0, Ending.LOST)
    text = body % checked.expected if "%s" in body else body
    Clients("", 1.0, 0)._read_whole(text.encode(), checked)
    assert checked.ending is ending


async def test_everything_breaks_and_the_books_balance(tmp_path: Path) -> None:
    path = tmp_path / "figures.json"
    command = [sys.executable, str(SCRIPT), "--quick", "--seconds", "20", "--json", str(path)]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()
    found = figures(json.loads(path.read_text(encoding="utf-8")))
    assert found["requests"] > 100
    assert found["retries"] > 0, "something did break"
    assert found["unaccounted"] == found["lost_before_first_byte"] == found["wrong_bytes"] == 0
